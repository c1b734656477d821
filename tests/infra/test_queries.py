"""The function that answers queries: where it comes from, what reaches it, and what it may do."""

import re
from contextlib import closing

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.routes import STREAMING_AREAS, make_application
from nakadi.app.settings import Settings
from nakadi_cdk.needs import QUERIES
from nakadi_cdk.settings import LONGEST_QUERY_SECONDS
from tests.infra.test_permissions import LAMBDA
from tests.support.api import problem
from tests.support.http import make_client
from tests.support.lazy_modules import LazyModule
from tests.support.templates import as_list, text

functions = LazyModule("nakadi_cdk.functions")

REST = "AWS::ApiGateway::RestApi"
STAGE = "AWS::ApiGateway::Stage"
ANY_ARN = "arn:aws:glue:eu-central-1:123456789012"


@pytest.fixture(scope="session")
def template(large_deployment):
    return large_deployment.serving


@pytest.fixture(scope="session")
def function(template):
    return template.functions()["queries"]


def post(template):
    return template.one(REST)["Body"]["paths"]["/queries"]["post"]["x-amazon-apigateway-integration"]


def test_queries_are_answered_if_the_context_asks_for_them(template, serving):
    """The gateway invokes the function for `POST /queries`. By default there is no function, and the streaming service
    says that there are no queries. (Q16, Q18)
    """
    assert post(template)["type"] == "aws_proxy"
    assert "queries" not in serving.functions()
    assert post(serving)["type"] == "http_proxy"


def test_the_streaming_service_offers_no_queries():
    """Without the function, and at a direct domain, the answer is 501. (Q16, Q18)"""
    with closing(open_broker(Settings())) as broker, make_client(make_application(broker, *STREAMING_AREAS)) as client:
        assert problem(client.post("/queries", json={"sql": "select 1"}), 501) == "This broker does not offer queries"


def test_queries_have_a_limit(template, serving):
    """Each query needs much memory, so the gateway accepts few of them at once. (Q18)"""

    def limits(template):
        return [
            (each["ThrottlingRateLimit"], each["ThrottlingBurstLimit"])
            for each in template.one(STAGE)["MethodSettings"]
            if (each["ResourcePath"], each["HttpMethod"]) == ("/~1queries", "POST")
        ]

    assert limits(template) == [(2, 4)]
    assert limits(serving) == []


def test_functions_learn_the_url_of_the_api_from_its_stage(template, msk_deployment):
    """A query is a client of the API at its domain, or else at the address of API Gateway. (Q18)"""
    assert template.one(STAGE)["Variables"] == {"broker_url": "https://events.example.org"}
    [url] = msk_deployment.serving.one(STAGE)["Variables"].values()
    assert re.fullmatch(r"https://<ApiRest\w+>\.execute-api\.eu-central-1\.amazonaws\.com/api", text(url))


def test_a_query_has_its_memory_and_its_time(template, function):
    """The function has memory and disk for one query, and for the process beside it. A query ends before the gateway
    gives up. (Q13, Q18)
    """
    environment = template.environment("queries")
    assert set(environment) == {*QUERIES.variables, functions.NAMESPACE_VARIABLE}
    settings = Settings.from_env(environment)
    assert (function["MemorySize"], settings.query_megabytes) == (2048, 1024)
    assert function["EphemeralStorage"]["Size"] == 2048
    assert settings.query_seconds == LONGEST_QUERY_SECONDS < function["Timeout"] == 29
    assert (settings.tables, settings.tables_database) == ("glue", "nakadi_test")


def test_the_function_reads_tables_and_nothing_else(template, function):
    """The role may read the files of the tables and their entries in Glue's catalog. (Q18)"""
    allowed = {
        (action, text(resource))
        for statement in template.statements(function["Role"])
        for action in as_list(statement["Action"])
        for resource in as_list(statement["Resource"])
        if action not in LAMBDA
    }
    assert allowed == {
        ("s3:GetObject", "arn:aws:s3:::nakadi-test-tables-123456789012-eu-central-1/tables/*"),
        ("glue:GetTable", f"{ANY_ARN}:catalog"),
        ("glue:GetTable", f"{ANY_ARN}:database/nakadi_test"),
        ("glue:GetTable", f"{ANY_ARN}:table/nakadi_test/*"),
    }
    assert template.actions(function["Role"]) >= LAMBDA


def test_the_image_is_made_of_what_it_needs(template, function):
    """The image's context is the packages of queries and the handler, and nothing that happens to lie beside them."""
    assert (function["PackageType"], function["Architectures"]) == ("Image", ["arm64"])
    [folder] = [path for path in template.path.parent.glob("asset.*") if (path / "nakadi_sql").is_dir()]
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"functions/queries/Dockerfile", "functions/queries/handler.py", "nakadi_sql/__main__.py"} <= files
    parts = "functions/queries|glue_jobs/nakadi_jobs|layers/nakadi/python/nakadi|nakadi_client|nakadi_sql"
    assert all(re.match(rf"({parts})/", name) for name in files), files
    assert not any("__pycache__" in name for name in files)
