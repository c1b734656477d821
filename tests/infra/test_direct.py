"""The direct way in beside the gateway: a public load balancer, and the paths that it lets through."""

import json
from contextlib import closing
from fnmatch import fnmatchcase

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.routes import DIRECT_AREAS, STREAMING_AREAS, make_routes
from nakadi.app.settings import Settings
from tests.infra.conftest import LARGE
from tests.support.lazy_modules import LazyModule
from tests.support.templates import text

direct = LazyModule("nakadi_cdk.direct")
permissions = LazyModule("nakadi_cdk.permissions")

BALANCER = "AWS::ElasticLoadBalancingV2::LoadBalancer"
LISTENER = "AWS::ElasticLoadBalancingV2::Listener"


@pytest.fixture(scope="session")
def public_balancer(large_deployment):
    """The balancer that is reached from everywhere, by its name in the template, and its listener."""
    [(name, _)] = [
        (name, each)
        for name, each in large_deployment.serving.all(BALANCER).items()
        if each["Scheme"] == "internet-facing"
    ]
    [listener] = [
        each for each in large_deployment.serving.all(LISTENER).values() if each["LoadBalancerArn"] == {"Ref": name}
    ]
    return name, listener


def test_without_a_host_of_its_own_there_is_none(serving):
    """Without a host for direct requests, only the gateway is reachable from outside, and the service serves neither
    publishing nor subscriptions.
    """
    [container] = serving.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]

    assert [each["Scheme"] for each in serving.all(BALANCER).values()] == ["internal"]
    assert "--direct" not in [text(word) for word in container["Command"]]


def test_the_balancer_listens_only_with_tls(large_deployment, public_balancer):
    """The balancer's only listener has the host's certificate, and accepts no outdated version of TLS."""
    _, listener = public_balancer

    assert (listener["Port"], listener["Protocol"]) == (443, "HTTPS")
    assert listener["Certificates"] == [{"CertificateArn": LARGE["direct_certificate_arn"]}]
    assert listener["SslPolicy"] == "ELBSecurityPolicy-TLS13-1-2-Res-2021-06"
    assert {each["Scheme"] for each in large_deployment.serving.all(BALANCER).values()} == {
        "internal",
        "internet-facing",
    }


def test_only_events_and_commits_are_let_through(large_deployment, public_balancer):
    """Three kinds of paths lead to the tasks; any other gets a Problem that says where it is served."""
    _, listener = public_balancer
    [default] = listener["DefaultActions"]
    rule = large_deployment.serving.one("AWS::ElasticLoadBalancingV2::ListenerRule")
    [condition] = rule["Conditions"]
    [action] = rule["Actions"]
    problem = json.loads(default["FixedResponseConfig"]["MessageBody"])

    assert (default["Type"], default["FixedResponseConfig"]["StatusCode"], problem["status"]) == (
        *("fixed-response", "404"),
        404,
    )
    assert condition["PathPatternConfig"]["Values"] == list(direct.PATHS)
    assert action["Type"] == "forward"


def test_what_is_let_through_is_served():
    """Of the paths that tasks serve, publishing, streams and commits are reachable; settings and types are not."""
    with closing(open_broker(Settings())) as broker:
        routes = make_routes(broker, *STREAMING_AREAS, *DIRECT_AREAS, "monitoring")
    reached = {route.operation for route in routes if any(fnmatchcase(route.template, path) for path in direct.PATHS)}

    assert reached >= {
        *("publish_events", "stream_events", "stream_subscription_events"),
        *("stream_subscription_events_with_parameters", "get_subscription_cursors", "commit_subscription_cursors"),
    }
    assert reached.isdisjoint({"create_subscription", "delete_subscription", "get_metrics", "get_health"})


def test_everyone_reaches_the_balancer_and_only_it_reaches_the_tasks(large_deployment):
    """Everyone reaches the balancer by TLS; only the balancer reaches the port of the tasks."""
    groups = {
        each["GroupDescription"]: (name, each)
        for name, each in large_deployment.serving.all("AWS::EC2::SecurityGroup").items()
    }
    name, group = groups["The load balancer that clients reach directly"]
    service, _ = groups["The streaming service"]
    internal, _ = groups["The load balancer"]
    [way_in] = group["SecurityGroupIngress"]
    to_tasks = {
        text(each["SourceSecurityGroupId"])
        for each in large_deployment.serving.all("AWS::EC2::SecurityGroupIngress").values()
        if text(each["GroupId"]) == f"<{service}.GroupId>"
    }

    assert (way_in["CidrIp"], way_in["FromPort"], way_in["ToPort"]) == ("0.0.0.0/0", 443, 443)
    assert to_tasks == {f"<{name}.GroupId>", f"<{internal}.GroupId>"}


def test_tasks_serve_it_and_check_tokens_themselves(large_deployment):
    """The service is behind both balancers, serves publishing too, and trusts no header about the caller."""
    [container] = large_deployment.serving.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]
    variables = {each["Name"]: text(each["Value"]) for each in container["Environment"]}

    assert len(large_deployment.serving.one("AWS::ECS::Service")["LoadBalancers"]) == 2
    assert "--direct" in [text(word) for word in container["Command"]]
    assert variables["NAKADI_AUTH"] == "jwt"
    assert {"NAKADI_MAX_SUBSCRIPTION_PARTITIONS", "NAKADI_LONGEST_WAIT_SECONDS"} <= set(variables)


def test_tasks_may_do_what_functions_may_that_serve_the_same():
    """Publishing and subscriptions need no permission that the role of the tasks lacks."""
    task = permissions.PERMISSIONS["streaming"]
    for function in ("publish", "subscriptions"):
        role = permissions.PERMISSIONS[function]
        assert all(set(actions) <= set(task.tables[table]) for table, actions in role.tables.items())
        assert set(role.stream) <= set(task.stream)
        assert set(role.archive) <= set(task.archive)


def test_its_failures_are_reported(large_deployment):
    """Answers of 5xx raise a separate alarm, and the firewall of the API also checks requests to the balancer."""
    alarms = {each["AlarmName"]: each for each in large_deployment.serving.all("AWS::CloudWatch::Alarm").values()}
    dimensions = {
        name: {each["Name"]: each["Value"] for each in alarms[f"nakadi-test-{name}"]["Dimensions"]}
        for name in ("DirectRequestsFail", "StreamingFails")
    }

    assert dimensions["DirectRequestsFail"] != dimensions["StreamingFails"]
    associated = [each["WebACLArn"] for each in large_deployment.serving.all("AWS::WAFv2::WebACLAssociation").values()]
    assert associated == [LARGE["web_acl_arn"]] * 2


def test_its_address_is_reported(large_deployment):
    """The outputs include the balancer's address, and the DNS target for its name."""
    outputs = {name: text(each["Value"]) for name, each in large_deployment.serving.content["Outputs"].items()}

    assert outputs["DirectUrl"] == "https://direct.example.org/"
    assert outputs["DirectTarget"].endswith(".DNSName>")
