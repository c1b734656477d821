"""The deployment, synthesized once for all tests."""

import os

import boto3
import pytest

from tests.support.aws import REGION, aws
from tests.support.functions import ROOT
from tests.support.templates import Deployment

# If the machine has no node, `make` has put one there. Modules of the CDK look for it when they are
# imported, which the tests beside this file do.
os.environ["PATH"] += "".join(f"{os.pathsep}{ROOT / '.cache' / tools / 'bin'}" for tools in ("node", "cdk"))

# cfn-lint need not report this rule: the CDK states dependencies that references already imply.
NOT_LOOKED_AT = ["W3005"]

STAGE = "test"
CONTEXT = {
    "stage": STAGE,
    "domain": "events.example.org",
    "certificate_arn": "arn:aws:acm:eu-central-1:123456789012:certificate/00000000-0000-0000-0000-000000000000",
    "auth_issuer": "https://issuer.example",
    "alarm_email": "somebody@example.org",
    "dedicated_streams": "orders=2",
    "aws:cdk:bundling-stacks": [],  # so that layers are not built
}
LARGE = {
    "dedicated_streams": ",".join(f"s{number}=1" for number in range(10)),
    "streaming_max_tasks": "4",
    "web_acl_arn": "arn:aws:wafv2:eu-central-1:123456789012:regional/webacl/mine/0-1",
    "concurrency": "1000",
    "canary_minutes": "5",
    "otel_layers": "arn:aws:lambda:eu-central-1:123456789012:layer:AWSOpenTelemetryDistroPython:20",
    "athena": "true",
    "table_readers": "arn:aws:iam::123456789012:role/analyst, arn:aws:iam::123456789012:user/people/ann@example.org",
    "direct_domain": "direct.example.org",
    "direct_certificate_arn": "arn:aws:acm:eu-central-1:123456789012:certificate/00000000-0000-0000-0000-000000000001",
    "sinks": "true",
    "sink_targets": "arn:aws:lambda:eu-central-1:123456789012:function:shop-*, "
    "arn:aws:sqs:eu-central-1:123456789012:orders.fifo",
    "dashboard": "true",
    "more_alarms": "true",
    "detailed_metrics": "true",
    "console": "true",
    "NAKADI_CONSOLE_SIGN_IN": "authorize=https://id.example/oauth2/authorize,token=https://id.example/oauth2/token,"
    "client=console,scope=openid nakadi/use",
    "table_minutes": "10",
    "table_stream": "true",
    "queries": "true",
}

CONSOLE_PAGE = '<!doctype html><html><head><script type="module" src="./assets/index-1a2b.js"></script></head></html>'
CONSOLE_SCRIPT = "document.title = `${1} #`;"


@pytest.fixture(scope="session")
def deployment(tmp_path_factory):
    """The output of `cdk synth`; it raises an error for every finding of the review."""
    folder = tmp_path_factory.mktemp("cdk.out")
    from infra.app import create_app  # noqa: PLC0415  # it starts node: not before it is needed

    create_app(outdir=str(folder), context=CONTEXT).synth()
    return Deployment(folder, f"nakadi-{STAGE}")


@pytest.fixture(scope="session")
def large_deployment(tmp_path_factory):
    """A deployment with every option: streams, tasks, a firewall, reservations, canaries, queries, a dashboard."""
    folder = tmp_path_factory.mktemp("large")
    built = tmp_path_factory.mktemp("console")
    (built / "assets").mkdir()
    (built / "index.html").write_text(CONSOLE_PAGE)
    (built / "assets" / "index-1a2b.js").write_text(CONSOLE_SCRIPT)
    (built / "assets" / "notes.txt").write_text("no file of a console")
    from infra.app import create_app  # noqa: PLC0415  # as above

    create_app(outdir=str(folder), context={**CONTEXT, **LARGE, "NAKADI_CONSOLE": str(built)}).synth()
    return Deployment(folder, f"nakadi-{STAGE}")


@pytest.fixture(scope="session")
def sleeping_deployment(tmp_path_factory):
    """The large deployment while it sleeps, with its tables in a table bucket."""
    folder = tmp_path_factory.mktemp("asleep")
    from infra.app import create_app  # noqa: PLC0415  # as above

    create_app(
        outdir=str(folder), context={**CONTEXT, "asleep": "true", "tables": "s3tables", "table_days": "30"}
    ).synth()
    return Deployment(folder, f"nakadi-{STAGE}")


@pytest.fixture(scope="session")
def msk_deployment(tmp_path_factory):
    """A deployment with its events in MSK, without analytics and without a domain."""
    folder = tmp_path_factory.mktemp("msk")
    from infra.app import create_app  # noqa: PLC0415  # as above

    chosen = {
        name: value for name, value in CONTEXT.items() if name not in {"dedicated_streams", "domain", "certificate_arn"}
    }
    create_app(outdir=str(folder), context={**chosen, "storage": "msk", "indexers": "2", "analytics": "false"}).synth()
    return Deployment(folder, f"nakadi-{STAGE}")


@pytest.fixture(scope="session")
def data(deployment):
    return deployment.data


@pytest.fixture(scope="session")
def serving(deployment):
    return deployment.serving


@pytest.fixture(scope="session")
def analytics(deployment):
    return deployment.analytics


@pytest.fixture
def data_resources(data):
    """An emulated AWS with the resources of the data stack, created by an emulation of CloudFormation."""
    with aws() as emulated:
        ssm = boto3.client("ssm", REGION)
        ssm.put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="30", Type="String")
        cloudformation = boto3.client("cloudformation", REGION)
        with pytest.warns(UserWarning, match="AWS::S3::BucketPolicy"):  # the emulation does not support bucket policies
            cloudformation.create_stack(StackName="nakadi-test-data", TemplateBody=data.path.read_text())
        [stack] = cloudformation.describe_stacks(StackName="nakadi-test-data")["Stacks"]
        assert stack["StackStatus"] == "CREATE_COMPLETE"
        yield emulated
