"""The API: every operation of the description answered by who serves it."""

import json
import re

import pytest

from infra.api import ANY, Unserved, who_answers
from nakadi.http.openapi import gateway_document, operations
from nakadi.http.security import PUBLIC
from tests.support.templates import text

PUBLISHING = "/event-types/{name}/events"


@pytest.fixture(scope="session")
def api(serving):
    return serving.one("AWS::ApiGateway::RestApi")


@pytest.fixture(scope="session")
def paths(api):
    return api["Body"]["paths"]


def integration(paths, operation):
    return paths[operation.path][operation.method.lower()]["x-amazon-apigateway-integration"]


def test_it_is_made_of_our_description(paths):
    """Every described operation is there, and beside them only what catches the rest."""
    described = gateway_document()["paths"]

    assert set(paths) == {*described, "/", "/{proxy+}"}
    for path, item in described.items():
        assert set(paths[path]) == {*item, ANY}
        assert {method: paths[path][method]["operationId"] for method in item} == {
            method: each["operationId"] for method, each in item.items()
        }


@pytest.mark.parametrize("operation", operations().values(), ids=lambda operation: operation.id)
def test_an_operation_is_answered_by_who_serves_it(serving, paths, operation):
    """An operation leads to the function that has its route, or to the streams."""
    found, answering = integration(paths, operation), who_answers()[operation.id]
    if answering == "streaming":
        assert found["type"] == "http_proxy"
    else:
        arn = found["uri"]["Fn::Sub"][1]["Function"]["Fn::GetAtt"][0]
        name = serving.resources[arn]["Properties"]["FunctionName"]
        assert (found["type"], found["httpMethod"]) == ("aws_proxy", "POST")
        assert name == f"nakadi-test-{answering.replace('_', '-')}"


def test_streams_go_through_to_the_service(serving, paths):
    """Streams are passed on as they come, as long as a gateway allows, to the load balancer inside the network."""
    streams = [each for each in operations().values() if who_answers()[each.id] == "streaming"]

    assert {each.id for each in streams} >= {"stream_events", "stream_subscription_events"}
    for each in streams:
        found = integration(paths, each)
        assert found["httpMethod"] == each.method
        assert found["responseTransferMode"] == "STREAM"
        assert found["timeoutInMillis"] == 900_000
        assert found["connectionType"] == "VPC_LINK"
        assert serving.resources[found["connectionId"]["Ref"]]["Type"] == "AWS::ApiGatewayV2::VpcLink"
        target = serving.resources[found["integrationTarget"]["Ref"]]["Type"]
        assert target == "AWS::ElasticLoadBalancingV2::Listener"
        assert text(found["uri"]).endswith(each.path)
        names = re.findall(r"{(\w+)}", each.path)
        assert found["requestParameters"] == {
            f"integration.request.path.{name}": f"method.request.path.{name}" for name in names
        }


def test_what_is_not_described_is_answered_all_the_same(paths):
    """Unknown paths, and methods that a path does not have, are Problems of the broker's own."""
    for path, item in paths.items():
        assert item[ANY]["x-amazon-apigateway-integration"]["type"] == "aws_proxy", path


def test_everything_but_the_public_needs_a_token(api):
    """The authorizer stands before every operation that is not for everybody."""
    for path, item in api["Body"]["paths"].items():
        for each in item.values():
            assert each["security"] == ([] if PUBLIC.fullmatch(path) else [{"token": []}]), path
    scheme = api["Body"]["components"]["securitySchemes"]["token"]
    assert scheme["x-amazon-apigateway-authorizer"]["authorizerResultTtlInSeconds"] == 60


def test_a_path_names_its_parameters(paths):
    """Every parameter in a path is declared, as a gateway wants it."""
    for path, item in paths.items():
        for each in item.values():
            assert [parameter["name"] for parameter in each["parameters"]] == re.findall(r"{(\w+)\+?}", path)


def test_an_operation_that_nobody_serves_is_noticed():
    """A description that runs ahead of the routes is not deployed."""
    from infra.api import _answering  # noqa: PLC0415  # a look inside

    with pytest.raises(Unserved, match="fly_away"):
        _answering("fly_away", who_answers())


def test_the_gateway_speaks_as_the_broker_does(api):
    """What the gateway refuses by itself is a Problem too."""
    answers = api["Body"]["x-amazon-apigateway-gateway-responses"]

    for answer in answers.values():
        body = answer["responseTemplates"]["application/json"].replace("$context.error.messageString", '"said"')
        problem = json.loads(body)
        assert str(problem["status"]) == answer["statusCode"]
        assert set(problem) == {"type", "title", "status", "detail"}
    assert json.loads(answers["UNAUTHORIZED"]["responseTemplates"]["application/json"])["detail"] == (
        "Full authentication is required to access this resource"
    )


def test_it_packs_what_is_worth_it(api):
    """Answers of a kilobyte are packed for who asks for it, and packed requests are understood."""
    assert api["MinimumCompressionSize"] == 1024


def test_nobody_takes_it_all(serving):
    """The stage is throttled, and writes down who asked for what."""
    stage = serving.one("AWS::ApiGateway::Stage")
    [settings] = stage["MethodSettings"]
    line = json.loads(stage["AccessLogSetting"]["Format"])

    assert (settings["HttpMethod"], settings["ResourcePath"]) == ("*", "/*")
    assert (settings["ThrottlingRateLimit"], settings["ThrottlingBurstLimit"]) == (1000, 2000)
    assert settings["DataTraceEnabled"] is False
    assert {"subject", "status", "operation", "milliseconds"} <= set(line)
    assert not any("authorization" in value.lower() for value in line.values())


def test_it_is_at_the_root_of_its_host(serving, api):
    """With a domain there is no prefix, and no other way in."""
    mapping = serving.one("AWS::ApiGateway::BasePathMapping")
    domain = serving.one("AWS::ApiGateway::DomainName")

    assert not mapping.get("BasePath")
    assert (domain["DomainName"], domain["SecurityPolicy"]) == ("events.example.org", "TLS_1_2")
    assert domain["EndpointConfiguration"] == {"Types": ["REGIONAL"]}
    assert api["DisableExecuteApiEndpoint"] is True


def test_only_this_api_may_call_the_functions(serving):
    """Each function that the gateway calls allows it for this API alone."""
    allowed = [
        each
        for each in serving.all("AWS::Lambda::Permission").values()
        if each["Principal"] == "apigateway.amazonaws.com"
    ]

    assert len(allowed) == 6
    [api] = serving.all("AWS::ApiGateway::RestApi")
    for each in allowed:
        assert text(each["SourceArn"]) == f"arn:aws:execute-api:eu-central-1:123456789012:<{api}>/*"
