"""The effects of choices that differ from the defaults."""

import json
from datetime import UTC, datetime

import pytest

from nakadi.engines.kinesis import fan_out, opening
from nakadi.engines.kinesis.fan_out import FanOut, StreamConsumerApi
from nakadi_cdk.context import Context
from nakadi_cdk.needs import NEEDS
from nakadi_jobs import compaction
from nakadi_jobs.session import catalog_settings_for
from tests.infra.conftest import CONTEXT, LARGE, NOT_LOOKED_AT
from tests.support.kinesis_local import CREDENTIALS
from tests.support.kinesis_pushed import start_pushing_kinesis
from tests.support.lazy_modules import LazyModule
from tests.support.templates import REGION, Deployment, as_list, text

cdk = LazyModule("aws_cdk")
assertions = LazyModule("aws_cdk.assertions")
logs = LazyModule("aws_cdk.aws_logs")
stacks = LazyModule("infra.stack")
data_constructs = LazyModule("nakadi_cdk.data")
functions = LazyModule("nakadi_cdk.functions")
network = LazyModule("nakadi_cdk.network")
permissions = LazyModule("nakadi_cdk.permissions")
streaming_constructs = LazyModule("nakadi_cdk.streaming")

ECR = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/nakadi/streaming"
CONSUMERS = "arn:aws:kinesis:eu-central-1:123456789012:stream/nakadi-test*/consumer/nakadi-test-*"


@pytest.fixture
def app():
    return cdk.App(analytics_reporting=False)


def all_of(template, kind):
    return [each for each in template["Resources"].values() if each["Type"] == kind]


def test_streams_can_grow_by_themselves(app):
    """On-demand streams have no number of shards."""
    stack = stacks.DataStack(app, "data", context=Context(stream_mode="on-demand", dedicated_streams="orders=4"))
    streams = [
        each["Properties"] for each in all_of(assertions.Template.from_stack(stack).to_json(), "AWS::Kinesis::Stream")
    ]

    assert sorted(each["Name"] for each in streams) == ["nakadi-dev", "nakadi-dev-orders"]
    assert [each["StreamModeDetails"] for each in streams] == [{"StreamMode": "ON_DEMAND"}] * 2
    assert not any("ShardCount" in each for each in streams)


def test_a_trial_can_be_removed_without_a_trace(app):
    """On request, tables, streams and buckets are deleted with their stack, and the stack can be deleted."""
    stack = stacks.DataStack(app, "data", context=Context(keep_data=False))
    template = assertions.Template.from_stack(stack).to_json()
    kept = [
        each
        for kind in ("AWS::DynamoDB::Table", "AWS::Kinesis::Stream", "AWS::S3::Bucket")
        for each in all_of(template, kind)
    ]

    assert stack.termination_protection is False
    assert {each["DeletionPolicy"] for each in kept} == {"Delete"}
    assert not any(each["Properties"].get("DeletionProtectionEnabled") for each in kept)


def test_replaced_objects_are_kept_and_copied_elsewhere(app):
    """With `version_days`, buckets keep replaced and removed objects for that long; with `archive_replica`, S3 copies
    new objects of the archive, and no deletions, by a role that may do nothing else."""
    replica = "arn:aws:s3:::copies-of-nakadi"
    stack = stacks.DataStack(app, "data", context=Context(version_days=30, archive_replica=replica))
    template = assertions.Template.from_stack(stack).to_json()
    archive, tables = (each["Properties"] for each in all_of(template, "AWS::S3::Bucket"))
    [role] = [each["Properties"] for each in all_of(template, "AWS::IAM::Role")]
    allowed = [
        statement
        for each in all_of(template, "AWS::IAM::Policy")
        for statement in each["Properties"]["PolicyDocument"]["Statement"]
    ]

    for bucket in (archive, tables):
        assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
        rule = bucket["LifecycleConfiguration"]["Rules"][0]
        assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
        assert rule["ExpiredObjectDeleteMarker"] is True
    [copying] = archive["ReplicationConfiguration"]["Rules"]
    assert (copying["Destination"]["Bucket"], copying["Status"]) == (replica, "Enabled")
    assert copying["DeleteMarkerReplication"] == {"Status": "Disabled"}
    assert "ReplicationConfiguration" not in tables
    assert role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": "s3.amazonaws.com"}
    writes = {"s3:ReplicateObject", "s3:ReplicateDelete", "s3:ReplicateTags", "s3:ObjectOwnerOverrideToBucketOwner"}
    for each in allowed:
        actions = set(each["Action"]) if isinstance(each["Action"], list) else {each["Action"]}
        assert all(action.startswith(("s3:Get", "s3:List")) for action in actions) or (
            actions <= writes and each["Resource"] == f"{replica}/*"
        ), each


@pytest.mark.parametrize(
    ("days", "recovery"),
    [
        (35, {"PointInTimeRecoveryEnabled": True}),
        (7, {"PointInTimeRecoveryEnabled": True, "RecoveryPeriodInDays": 7}),
        (0, {"PointInTimeRecoveryEnabled": False}),
    ],
)
def test_tables_can_be_restored_for_as_long_as_chosen(app, days, recovery):
    """With `recovery_days`, DynamoDB keeps what it needs to restore a table for a shorter time, or not at all."""
    stack = stacks.DataStack(app, "data", context=Context(recovery_days=days))
    template = assertions.Template.from_stack(stack).to_json()

    tables = all_of(template, "AWS::DynamoDB::Table")
    assert [each["Properties"]["PointInTimeRecoverySpecification"] for each in tables] == [recovery] * 3


def test_by_default_buckets_keep_no_versions(app):
    """Without `version_days`, buckets keep no versions."""
    template = assertions.Template.from_stack(stacks.DataStack(app, "data", context=Context())).to_json()

    assert not any("VersioningConfiguration" in each["Properties"] for each in all_of(template, "AWS::S3::Bucket"))
    assert not all_of(template, "AWS::IAM::Role")


def streaming_template(app, image="", **options):
    stack = cdk.Stack(app, "serving")
    data = data_constructs.Data(
        stack,
        "Data",
        prefix="nakadi-dev",
        on_demand=False,
        shards={"nakadi-dev": 1},
        stream_retention=cdk.Duration.hours(24),
    )
    streaming_constructs.Streaming(
        stack,
        "Streaming",
        data=data,
        environment={},
        path_prefix="/api",
        size=streaming_constructs.ServiceSize(cpu=256, memory=512, min_tasks=2, max_tasks=4, streams_per_task=500),
        log_retention=logs.RetentionDays.ONE_DAY,
        image=image,
        **{name: choose(stack) if callable(choose) else choose for name, choose in options.items()},
    )
    return assertions.Template.from_stack(stack).to_json()


def image_of(template):
    [task] = all_of(template, "AWS::ECS::TaskDefinition")
    [container] = task["Properties"]["ContainerDefinitions"]
    return container["Image"]


def test_an_image_can_be_one_that_exists(app):
    """An image of ECR needs no Docker here, and its repository is the only one that the task may fetch from."""
    template = streaming_template(app, f"{ECR}:1.2.0")
    fetching = [
        statement["Resource"]
        for policy in all_of(template, "AWS::IAM::Policy")
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if "ecr:BatchGetImage" in statement["Action"]
    ]

    assert image_of(template)["Fn::Join"][1][0] == "123456789012.dkr.ecr.eu-central-1."
    assert image_of(template)["Fn::Join"][1][-1] == "/nakadi/streaming:1.2.0"
    assert [each["Fn::Join"][1][-1] for each in fetching] == [
        ":ecr:eu-central-1:123456789012:repository/nakadi/streaming"
    ]


def test_an_image_can_be_of_another_registry(app):
    """Any other name is fetched from its own registry."""
    assert image_of(streaming_template(app, "public.ecr.aws/somebody/nakadi:1")) == "public.ecr.aws/somebody/nakadi:1"


@pytest.mark.parametrize(
    ("concurrency", "shards", "kept"),
    [
        (0, 1, {}),
        (200, 1, {"authorizer": 20, "log_indexer": 2, "housekeeping": 2, "publish": 100}),
        (1000, 64, {"authorizer": 100, "log_indexer": 64, "housekeeping": 2, "publish": 500}),
        (1000, 500, {"authorizer": 100, "log_indexer": 100, "housekeeping": 2, "publish": 500}),
    ],
)
def test_publishing_cannot_take_every_function(concurrency, shards, kept):
    """Parts of the account's concurrency are reserved for the authorizer and the indexer, and the other functions also
    keep some.
    """
    assert functions.reserve_concurrency(concurrency, shards) == kept
    assert not concurrency or sum(kept.values()) <= concurrency - 50


SUBNETS = {"subnet-1": "eu-central-1a", "subnet-2": "eu-central-1b"}


def test_streams_can_be_served_in_a_network_that_exists(app):
    """The deployment creates no network; tasks, balancer and link are in private subnets, and tasks have no public
    addresses."""
    template = streaming_template(app, network=lambda stack: network.existing_network(stack, "vpc-0a1b", SUBNETS))
    [service] = all_of(template, "AWS::ECS::Service")
    [balancer] = all_of(template, "AWS::ElasticLoadBalancingV2::LoadBalancer")
    [link] = all_of(template, "AWS::ApiGatewayV2::VpcLink")
    placed = service["Properties"]["NetworkConfiguration"]["AwsvpcConfiguration"]

    assert {each["Properties"]["VpcId"] for each in all_of(template, "AWS::EC2::SecurityGroup")} == {"vpc-0a1b"}
    assert placed["AssignPublicIp"] == "DISABLED"
    assert placed["Subnets"] == balancer["Properties"]["Subnets"] == link["Properties"]["SubnetIds"] == [*SUBNETS]
    assert not [kind for kind in kinds(template) if kind in {"AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::Route"}]


def test_streams_can_be_served_without_a_way_to_the_internet(app):
    """A private network has neither gateway, NAT nor addresses, and an endpoint for every service that a task calls."""
    template = streaming_template(app, private=True)
    [service] = all_of(template, "AWS::ECS::Service")
    endpoints = [each["Properties"] for each in all_of(template, "AWS::EC2::VPCEndpoint")]

    assert service["Properties"]["NetworkConfiguration"]["AwsvpcConfiguration"]["AssignPublicIp"] == "DISABLED"
    assert not kinds(template) & {"AWS::EC2::InternetGateway", "AWS::EC2::NatGateway", "AWS::EC2::EIP"}
    assert sorted(text(each["ServiceName"]).partition("eu-central-1.")[2] for each in endpoints) == [
        "dynamodb",
        "ecr.api",
        "ecr.dkr",
        "kinesis-streams",
        "logs",
        "s3",
    ]
    ways_in = [each["Properties"] for each in all_of(template, "AWS::EC2::SecurityGroupIngress")]
    assert sum(each["FromPort"] == 443 and "SourceSecurityGroupId" in each for each in ways_in) == len(
        network.ENDPOINTS
    )


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("region", "zones"),
    [
        ("us-east-1", ["use1-az1", "use1-az4"]),
        ("us-west-1", ["usw1-az1", "usw1-az3"]),
        ("eu-central-1", [{"Fn::Select": [0, {"Fn::GetAZs": ""}]}, {"Fn::Select": [1, {"Fn::GetAZs": ""}]}]),
    ],
)
def test_subnets_are_where_a_link_can_be(app, region, zones, private):
    """If a region has zones without VPC links, the deployment uses two others."""
    template = streaming_template(app, private=private)
    subnets = [each["Properties"] for each in all_of(template, "AWS::EC2::Subnet")]
    placed = [
        [
            found
            for name in ("AvailabilityZone", "AvailabilityZoneId")
            if (found := resolve_condition(template, each[name], region)) != {"Ref": "AWS::NoValue"}
        ]
        for each in subnets
    ]

    assert placed == [[each] for each in zones]


def resolve_condition(template, value, region):
    """The value of a condition when it is deployed to a region."""
    match value:
        case {"Fn::If": [condition, yes, no]}:
            return resolve_condition(
                template, yes if condition_holds(template, template["Conditions"][condition], region) else no, region
            )
    return value


def condition_holds(template, condition, region):
    match condition:
        case {"Fn::Equals": [{"Ref": "AWS::Region"}, other]}:
            return region == other
        case {"Fn::Not": [each]}:
            return not condition_holds(template, each, region)
        case {"Fn::Or": several}:
            return any(condition_holds(template, each, region) for each in several)
        case {"Condition": name}:
            return condition_holds(template, template["Conditions"][name], region)
    raise TypeError(condition)


def kinds(template):
    return {each["Type"] for each in template["Resources"].values()}


def test_what_comes_from_the_load_balancer_can_be_encrypted(app):
    """The balancer speaks TLS to tasks, including for health checks, and tasks create a certificate."""
    template = streaming_template(app, tls=True)
    [group] = all_of(template, "AWS::ElasticLoadBalancingV2::TargetGroup")
    [task] = all_of(template, "AWS::ECS::TaskDefinition")

    assert (group["Properties"]["Protocol"], group["Properties"]["HealthCheckProtocol"]) == ("HTTPS", "HTTPS")
    assert "--tls" in task["Properties"]["ContainerDefinitions"][0]["Command"]


KEY = "arn:aws:kms:eu-central-1:123456789012:key/00000000-0000-0000-0000-000000000000"
BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"


@pytest.fixture(scope="session")
def chosen_deployment(tmp_path_factory):
    """A deployment with many unusual choices, which the review checks as always."""
    folder = tmp_path_factory.mktemp("chosen")
    from infra.app import create_app  # noqa: PLC0415  # it starts node: not before it is needed

    context = {
        **CONTEXT,
        "name_prefix": "shop",
        "kms_key_arn": KEY,
        "permissions_boundary": BOUNDARY,
        "network": "private",
        "task_tls": "true",
        "queries": "true",
        "query_image": f"{ECR}:1",
    }
    create_app(outdir=str(folder), context=context).synth()
    return Deployment(folder, "shop-test")


@pytest.mark.long
@pytest.mark.parametrize("name", ["data", "serving", "analytics"])
def test_templates_with_many_choices_are_sound(chosen_deployment, name):
    """cfn-lint finds no fault in the templates of a deployment with many unusual choices."""
    from cfnlint.api import ManualArgs, lint_file  # noqa: PLC0415  # it takes a second: only for tests that need it

    found = lint_file(
        getattr(chosen_deployment, name).path, config=ManualArgs(regions=[REGION], ignore_checks=NOT_LOOKED_AT)
    )

    assert [(each.rule.id, each.path, each.message) for each in found] == []


def test_a_firewall_can_be_put_in_front(large_deployment):
    """A web ACL is bound to the stage of the API, and functions have their reservations."""
    stages = [
        each for each in large_deployment.serving.all("AWS::WAFv2::WebACLAssociation").values() if "stages" in str(each)
    ]
    assert [each["WebACLArn"] for each in stages] == [LARGE["web_acl_arn"]]
    functions = large_deployment.serving.functions()
    assert functions["authorizer"]["ReservedConcurrentExecutions"] == 100
    assert "ReservedConcurrentExecutions" not in functions["cursors"]


def test_shards_are_pushed_where_many_tasks_may_run(serving, large_deployment):
    """If there may be more than two tasks, each has its own consumer of the stream, and housekeeping removes the
    consumers of killed tasks.
    """

    def log_of(template):
        [container] = template.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]
        variables = {each["Name"]: text(each["Value"]) for each in container["Environment"]}
        return variables["NAKADI_EVENT_LOG"], template.environment("housekeeping")["NAKADI_EVENT_LOG"]

    assert not any("fan_out" in url for url in log_of(serving))
    assert all("&fan_out=nakadi-test" in url for url in log_of(large_deployment.serving))
    assert not any(
        "fan_out" in large_deployment.serving.environment(name).get("NAKADI_EVENT_LOG", "")
        for name in ("cursors", "publish")
    )


@pytest.mark.parametrize(
    ("chosen", "tasks", "expected"),
    [("auto", 2, False), ("auto", 3, True), ("true", 1, True), ("false", 10, False)],
)
def test_fan_out_is_chosen_by_the_number_of_tasks(chosen, tasks, expected):
    """By default, two tasks may read a shard beside the indexer, and no more."""
    assert Context(fan_out=chosen, streaming_max_tasks=tasks).fans_out == expected


def test_roles_may_do_what_fan_out_asks_for(large_deployment, monkeypatch):
    """Tasks may make every call that a consumer of this stage needs, and housekeeping may make the calls that remove
    one."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(fan_out, "STATUS_CHECK_INTERVAL_SECONDS", 0.0)
    with start_pushing_kinesis(None) as kinesis:
        kinesis.pushes = False
        task = FanOut(StreamConsumerApi(opening.new_kinesis_client({}, 10.0), "nakadi-test"), "nakadi-test")
        for _ in range(2):
            assert not list(task.receive_pages("s", None))
        task.close()
        of_task = set(kinesis.calls)
        killed = kinesis.answer("RegisterStreamConsumer", {"StreamARN": "arn", "ConsumerName": "nakadi-test-killed"})
        kinesis.registered_at(datetime(2026, 1, 1, tzinfo=UTC))
        kinesis.calls.clear()
        house = FanOut(StreamConsumerApi(opening.new_kinesis_client({}, 10.0), "nakadi-test"), "nakadi-test")
        house.remove_orphaned_consumers(datetime(2026, 1, 2, tzinfo=UTC))
        house.close()
        assert killed["Consumer"]["ConsumerARN"] not in kinesis.consumers
        of_housekeeping = set(kinesis.calls)

    for role, needed in (("StreamingRole", of_task), ("FunctionsRolehousekeeping", of_housekeeping)):
        [name] = [each for each in large_deployment.serving.all("AWS::IAM::Role") if each.startswith(role)]
        given = [
            (action.removeprefix("kinesis:"), text(resource))
            for statement in large_deployment.serving.statements({"Ref": name})
            for action in as_list(statement["Action"])
            for resource in as_list(statement["Resource"])
            if "Consumer" in action or "SubscribeToShard" in action or "Summary" in action
        ]
        assert {action for action, _ in given} == needed
        assert all(":stream/nakadi-test" in resource for _, resource in given)
        assert ("DeregisterStreamConsumer", CONSUMERS) in given


def rules(template):
    return template.all("AWS::Events::Rule").values()


def test_a_stage_that_sleeps_says_so(sleeping_deployment):
    """Requests for streams get a Problem with status 503 that says when to retry; everything else is served."""
    paths = sleeping_deployment.serving.one("AWS::ApiGateway::RestApi")["Body"]["paths"]
    for operation in (
        paths["/event-types/{name}/events"]["get"],
        paths["/subscriptions/{subscription_id}/events"]["post"],
    ):
        integration = operation["x-amazon-apigateway-integration"]
        [answer] = integration["responses"].values()
        assert (integration["type"], integration["contentHandling"]) == ("mock", "CONVERT_TO_TEXT")
        assert json.loads(integration["requestTemplates"]["application/json"]) == {"statusCode": 503}
        assert json.loads(answer["responseTemplates"]["application/json"])["status"] == 503
        assert answer["statusCode"] in operation["responses"]
        named = {name.removeprefix("method.response.header.") for name in answer["responseParameters"]}
        assert named == set(operation["responses"]["503"]["headers"]) == {"content-type", "retry-after"}
        assert operation["security"]
        assert {"application/json", "text/plain"} <= set(integration["requestTemplates"])
    # No link would have to be kept alive.
    assert "rate(7 days)" not in {each.get("ScheduleExpression") for each in rules(sleeping_deployment.serving)}
    publishing = paths["/event-types/{name}/events"]["post"]["x-amazon-apigateway-integration"]
    assert publishing["type"] == "aws_proxy"


def test_everything_can_have_another_name(chosen_deployment):
    """Names begin with the chosen prefix, and none has the default one."""
    functions = chosen_deployment.serving.all("AWS::Lambda::Function").values()

    assert all(each["FunctionName"].startswith("shop-test-") for each in functions)
    assert {
        each["TableName"].partition("-test-")[0] for each in chosen_deployment.data.all("AWS::DynamoDB::Table").values()
    } == {"shop"}
    for template in (chosen_deployment.data, chosen_deployment.serving, chosen_deployment.analytics):
        assert "nakadi-test" not in template.path.read_text()


def test_every_role_is_bounded(chosen_deployment):
    """A permissions boundary is on every role of every stack."""
    roles = [
        role
        for template in (chosen_deployment.data, chosen_deployment.serving, chosen_deployment.analytics)
        for role in template.all("AWS::IAM::Role").values()
    ]

    assert len(roles) > 10
    assert {each.get("PermissionsBoundary") for each in roles} == {BOUNDARY}


def test_what_people_stored_can_be_encrypted_with_a_key_of_theirs(chosen_deployment):
    """Tables, streams and buckets use the chosen key, and each role may use the key only through them."""
    tables = chosen_deployment.data.all("AWS::DynamoDB::Table").values()
    streams = chosen_deployment.data.all("AWS::Kinesis::Stream").values()
    buckets = chosen_deployment.data.all("AWS::S3::Bucket").values()
    encrypted = [each["BucketEncryption"]["ServerSideEncryptionConfiguration"][0] for each in buckets]

    assert {each["SSESpecification"]["KMSMasterKeyId"] for each in tables} == {KEY}
    assert {each["StreamEncryption"]["KeyId"] for each in streams} == {KEY}
    assert {each["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] for each in encrypted} == {KEY}
    assert all(each["BucketKeyEnabled"] for each in encrypted)

    uses = {}
    for template in (chosen_deployment.serving, chosen_deployment.analytics):
        for policy in template.all("AWS::IAM::Policy").values():
            statements = policy["PolicyDocument"]["Statement"]
            reached = {
                action.partition(":")[0]
                for each in statements
                for action in as_list(each["Action"])
                if action.startswith(("dynamodb:", "kinesis:", "s3:"))
            }
            keyed = [each for each in statements if each["Resource"] == KEY]
            role = text(policy["Roles"][0])
            reads_tables = role.startswith("<QueriesRole")
            uses[role] = (reads_tables or bool(reached - {"s3"}), len(keyed))
            for each in keyed:
                ways = [text(way) for way in as_list(each["Condition"]["StringEquals"]["kms:ViaService"])]
                services = ("s3",) if reads_tables else ("dynamodb", "kinesis", "s3")
                assert ways == [f"{service}.eu-central-1.amazonaws.com" for service in services]
                assert as_list(each["Action"]) == ["kms:Decrypt"] or not reads_tables
    assert all(touches == bool(keyed) for touches, keyed in uses.values()), uses
    # The authorizer uses no data, and the job that follows the log exists only if it is chosen.
    assert sum(keyed for _, keyed in uses.values()) >= len(set(permissions.PERMISSIONS) - {"authorizer", "follow"})


def test_new_versions_of_functions_are_tried_first(large_deployment, serving):
    """Every function that answers requests has an alias, which the API invokes. A canary moves the alias to a new
    version, and back if requests fail. By default, functions are replaced at once."""
    template = large_deployment.serving
    aliases = template.all("AWS::Lambda::Alias")
    answering = {name for name, needs in NEEDS.items() if needs.areas} | {"authorizer", "queries"}
    assert {each["Name"] for each in aliases.values()} == {"live"}
    assert len(aliases) == len(answering)
    body = json.dumps(template.one("AWS::ApiGateway::RestApi")["Body"])
    assert [name for name in aliases if f'{{"Ref": "{name}"}}' not in body] == []
    assert [name for name in template.all("AWS::Lambda::Function") if f'["{name}", "Arn"]' in body] == []
    assert all("CodeDeployLambdaAliasUpdate" in template.resources[name]["UpdatePolicy"] for name in aliases)
    groups = template.all("AWS::CodeDeploy::DeploymentGroup").values()
    assert len(groups) == len(answering)
    for each in groups:
        assert each["DeploymentConfigName"] == "CodeDeployDefault.LambdaCanary10Percent5Minutes"
        assert each["AutoRollbackConfiguration"]["Enabled"]
        assert each["AlarmConfiguration"]["Enabled"]
        assert "DEPLOYMENT_STOP_ON_ALARM" in each["AutoRollbackConfiguration"]["Events"]
    assert serving.all("AWS::Lambda::Alias") == {}


def test_tables_can_be_asked_by_athena(large_deployment, analytics):
    """A workgroup keeps the results of queries on the tables for a month, and ends a query that would read too much;
    there is none by default."""
    group = large_deployment.analytics.one("AWS::Athena::WorkGroup")
    settings = group["WorkGroupConfiguration"]
    assert settings["EnforceWorkGroupConfiguration"]
    assert settings["BytesScannedCutoffPerQuery"] == 10**12
    found = text(settings["ResultConfiguration"]["OutputLocation"])
    assert found.startswith("s3://nakadi-test-tables-")
    assert found.endswith("/athena/")
    days = {
        rule["Prefix"]: rule["ExpirationInDays"]
        for bucket in large_deployment.data.all("AWS::S3::Bucket").values()
        for rule in bucket["LifecycleConfiguration"]["Rules"]
        if rule.get("ExpirationInDays")
    }
    assert days["athena/"] == 30
    assert analytics.all("AWS::Athena::WorkGroup") == {}


def test_tables_can_be_in_a_table_bucket(sleeping_deployment, deployment):
    """With `tables=s3tables` the stack of the data has a table bucket, which remains when the stack is deleted; jobs
    have its catalog, may use it, and have nothing to do with Glue's.
    """
    bucket = sleeping_deployment.data.one("AWS::S3Tables::TableBucket")
    assert bucket["TableBucketName"] == "nakadi-test-tables"
    [job] = [
        each
        for each in sleeping_deployment.analytics.all("AWS::Glue::Job").values()
        if each["Name"] == "nakadi-test-compaction"
    ]
    given = [part for name, value in job["DefaultArguments"].items() for part in (name, text(value))]
    known = compaction._options(given)
    assert (known.catalog, known.keep_days) == ("s3tables", 30)
    assert catalog_settings_for(known.tables, known.catalog, {"warehouse": known.warehouse})
    may = [
        action
        for name in sleeping_deployment.analytics.all("AWS::IAM::Role")
        for statement in sleeping_deployment.analytics.statements({"Ref": name})
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    ]
    assert "s3tables:UpdateTableMetadataLocation" in may
    assert not any(action.startswith("glue:") for action in may)
    assert deployment.data.all("AWS::S3Tables::TableBucket") == {}


def test_lake_formation_lets_readers_read(large_deployment, analytics):
    """Each reader may see the database, and select from every table in it; none may grant these rights to others."""
    grants = large_deployment.analytics.all("AWS::LakeFormation::PrincipalPermissions").values()
    readers = [each.strip() for each in LARGE["table_readers"].split(",")]
    wanted = [(each, what) for each in readers for what in (["DESCRIBE"], ["DESCRIBE", "SELECT"])]
    given = [(each["Principal"]["DataLakePrincipalIdentifier"], each["Permissions"]) for each in grants]
    assert given == wanted
    assert all(each["PermissionsWithGrantOption"] == [] for each in grants)
    assert {each["Resource"]["Table"]["DatabaseName"] for each in grants if "Table" in each["Resource"]} == {
        "nakadi_test"
    }
    assert analytics.all("AWS::LakeFormation::PrincipalPermissions") == {}
