"""The API: each operation of the description is answered by the part that serves it."""

import json
import re

import pytest

from nakadi.app.authentication import PUBLIC_PATH_PATTERN
from nakadi.openapi import document, gateway_document, operations
from nakadi_cdk.gateway_responses import GATEWAY_MESSAGE
from tests.support.lazy_modules import LazyModule
from tests.support.templates import text

cdk_api = LazyModule("nakadi_cdk.api")
pages = LazyModule("nakadi_cdk.pages")

PUBLISHING = "/event-types/{name}/events"


@pytest.fixture(scope="session")
def api(serving):
    return serving.one("AWS::ApiGateway::RestApi")


@pytest.fixture(scope="session")
def paths(api):
    return api["Body"]["paths"]


def integration(paths, operation):
    return paths[operation.path][operation.method.lower()]["x-amazon-apigateway-integration"]


def test_the_api_has_every_described_operation(paths):
    """The API has every described operation, and beside these only the catch-all."""
    described = gateway_document()["paths"]

    assert set(paths) == {*described, "/", "/{proxy+}", "/health/{proxy+}", "/health/streams"}
    for path, item in described.items():
        streamed = "get" in item and cdk_api.find_backends()[item["get"]["operationId"]] == "streaming"
        page = ["head", "options"] if path in pages.PAGES.values() else []
        assert set(paths[path]) == {*item, cdk_api.ANY_METHOD, *(["head"] if streamed else page)}
        assert {method: paths[path][method]["operationId"] for method in item} == {
            method: each["operationId"] for method, each in item.items()
        }


@pytest.mark.parametrize("operation", operations().values(), ids=lambda operation: operation.id)
def test_an_operation_is_answered_by_who_serves_it(serving, paths, operation):
    """An operation leads to the function that has its route, or to the streams."""
    found, backend = integration(paths, operation), cdk_api.find_backends()[operation.id]
    if backend == "streaming":
        assert found["type"] == "http_proxy"
    elif backend == "gateway":
        assert found["type"] in {"mock", "aws"}
    else:
        arn = found["uri"]["Fn::Sub"][1]["Function"]["Fn::GetAtt"][0]
        name = serving.resources[arn]["Properties"]["FunctionName"]
        assert (found["type"], found["httpMethod"]) == ("aws_proxy", "POST")
        assert name == f"nakadi-test-{backend.replace('_', '-')}"


def test_streams_go_through_to_the_service(serving, paths):
    """Streams are passed to the load balancer inside the network unchanged, for as long as a gateway allows."""
    streams = [each for each in operations().values() if cdk_api.find_backends()[each.id] == "streaming"]

    assert {each.id for each in streams} >= {"stream_events", "stream_subscription_events"}
    for each in streams:
        found = integration(paths, each)
        assert found["httpMethod"] == each.method
        assert found["responseTransferMode"] == "STREAM"
        assert found["timeoutInMillis"] == 900_000
        assert found["connectionType"] == "VPC_LINK"
        assert serving.resources[found["connectionId"]["Ref"]]["Type"] == "AWS::ApiGatewayV2::VpcLink"
        target = serving.resources[found["integrationTarget"]["Ref"]]["Type"]
        assert target == "AWS::ElasticLoadBalancingV2::LoadBalancer"
        assert text(found["uri"]).endswith(f":80{each.path}")
        names = re.findall(r"{(\w+)}", each.path)
        assert found["requestParameters"] == {
            f"integration.request.path.{name}": f"method.request.path.{name}" for name in names
        }


def test_whether_a_stream_could_be_opened_is_asked_of_the_service(paths):
    """HEAD is answered by the streaming service, like GET."""
    for path in (PUBLISHING, "/subscriptions/{subscription_id}/events"):
        get, head = (paths[path][method]["x-amazon-apigateway-integration"] for method in ("get", "head"))
        assert {**head, "httpMethod": "GET"} == get
        assert head["httpMethod"] == "HEAD"


def test_what_is_not_described_is_answered_all_the_same(paths):
    """Unknown paths, and methods that a path does not have, get Problems of the broker's own."""
    for path, item in paths.items():
        public = PUBLIC_PATH_PATTERN.fullmatch(path) and path != "/ready"
        assert item[cdk_api.ANY_METHOD]["x-amazon-apigateway-integration"]["type"] == (
            "mock" if public else "aws_proxy"
        ), path


def test_public_pages_take_no_function(paths):
    """Public paths invoke no function, for any method, except for readiness, which only a function knows."""
    for path, item in paths.items():
        if PUBLIC_PATH_PATTERN.fullmatch(path) and path != "/ready":
            kinds = {each["x-amazon-apigateway-integration"]["type"] for each in item.values()}
            assert kinds <= ({"http_proxy", "mock"} if path == "/health/streams" else {"aws", "mock"}), path


def test_a_mock_can_be_read_although_bodies_are_bytes(paths):
    """The mock first converts each request to text, because this API treats every body as bytes, for which there is no
    template.
    """
    mocks = [
        each["x-amazon-apigateway-integration"]
        for item in paths.values()
        for each in item.values()
        if each["x-amazon-apigateway-integration"]["type"] == "mock"
    ]

    assert len(mocks) > 5
    for each in mocks:
        assert (each["contentHandling"], each["passthroughBehavior"]) == ("CONVERT_TO_TEXT", "never")
        [answer] = each["responses"].values()
        assert {json.loads(template)["statusCode"] for template in each["requestTemplates"].values()} == {
            int(answer["statusCode"])
        }


def test_pages_are_what_the_broker_itself_would_answer(serving, paths):
    """The description and its page are files that the API may fetch, and the page keeps its policy."""
    files = {path.name: path.read_bytes() for path in (serving.path.parent / "pages").iterdir()}

    assert json.loads(files["openapi-json"]) == document()
    assert b"https://events.example.org/event-types" in files["docs"]
    assert b'<meta http-equiv="Content-Security-Policy" content="default-src &#x27;none&#x27;' in files["docs"]
    told = paths["/docs"]["get"]["x-amazon-apigateway-integration"]["responses"]["200"]["responseParameters"]
    assert told["method.response.header.content-type"] == "'text/html; charset=utf-8'"
    assert told["method.response.header.x-frame-options"] == "'DENY'"
    assert all("'" not in value[1:-1] for value in told.values())


def test_a_header_that_is_reported_is_declared(paths):
    """Every header in a mapping is declared in its method, because API Gateway would refuse the mapping otherwise."""
    for item in paths.values():
        for each in item.values():
            for answer in each["x-amazon-apigateway-integration"].get("responses", {}).values():
                told = {name.rpartition(".")[2] for name in answer["responseParameters"]}
                assert told <= set(each["responses"][answer["statusCode"]]["headers"])


def test_everything_but_the_public_needs_a_token(api):
    """The authorizer protects every operation except the public ones: health, readiness, the description of the API and
    its page. (R42)
    """
    for path, item in api["Body"]["paths"].items():
        for each in item.values():
            assert each["security"] == ([] if PUBLIC_PATH_PATTERN.fullmatch(path) else [{"token": []}]), path
    public = {path for path, item in api["Body"]["paths"].items() if not item[cdk_api.ANY_METHOD]["security"]}
    assert public == {"/health", "/health/{proxy+}", "/ready", "/docs", "/openapi.json", "/health/streams"}
    scheme = api["Body"]["components"]["securitySchemes"]["token"]
    assert scheme["x-amazon-apigateway-authorizer"]["authorizerResultTtlInSeconds"] == 60


@pytest.mark.parametrize(
    ("header", "asked"),
    [
        ("Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln-_8", True),
        ("bearer  a.b.c", True),
        ("Bearer rubbish", False),
        ("Bearer a.b.c.d", False),
        ("Basic a.b.c", False),
        ("Bearer", False),
        ("Bearer a.b.", False),
    ],
)
def test_the_authorizer_is_asked_only_about_what_may_be_a_token(api, header, asked):
    """The gateway itself refuses what cannot be a token, which must not occupy functions that clients with a token
    need.
    """
    authorizer = api["Body"]["components"]["securitySchemes"]["token"]["x-amazon-apigateway-authorizer"]

    assert bool(re.search(authorizer["identityValidationExpression"], header)) is asked


def test_a_path_names_its_parameters(paths):
    """Every parameter in a path is declared, as a gateway wants it."""
    for path, item in paths.items():
        for each in item.values():
            assert [parameter["name"] for parameter in each["parameters"]] == re.findall(r"{(\w+)\+?}", path)


def test_an_operation_that_no_one_serves_is_noticed():
    """A description with an operation that no route serves is not deployed."""
    from nakadi_cdk.api import _find_backend  # noqa: PLC0415  # a look inside

    with pytest.raises(cdk_api.UnservedOperation, match="fly_away"):
        _find_backend("fly_away", cdk_api.find_backends())


@pytest.fixture(scope="session")
def gateway_answers(api):
    """The gateway's own answers: status, headers and body of each kind."""
    return {
        kind: (
            answer["statusCode"],
            {
                name.removeprefix("gatewayresponse.header."): value.strip("'")
                for name, value in answer["responseParameters"].items()
            },
            json.loads(answer["responseTemplates"]["application/json"].replace(GATEWAY_MESSAGE, '"said"')),
        )
        for kind, answer in api["Body"]["x-amazon-apigateway-gateway-responses"].items()
    }


KINDS = {
    "ACCESS_DENIED": 403,
    "API_CONFIGURATION_ERROR": 500,
    "AUTHORIZER_CONFIGURATION_ERROR": 503,
    "AUTHORIZER_FAILURE": 503,
    "BAD_REQUEST_BODY": 400,
    "BAD_REQUEST_PARAMETERS": 400,
    "DEFAULT_4XX": 400,
    "DEFAULT_5XX": 500,
    "EXPIRED_TOKEN": 401,
    "INTEGRATION_FAILURE": 503,
    "INTEGRATION_TIMEOUT": 504,
    "INVALID_API_KEY": 403,
    "INVALID_SIGNATURE": 401,
    "MISSING_AUTHENTICATION_TOKEN": 404,
    "QUOTA_EXCEEDED": 429,
    "REQUEST_TOO_LARGE": 413,
    "RESOURCE_NOT_FOUND": 404,
    "THROTTLED": 429,
    "UNAUTHORIZED": 401,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "WAF_FILTERED": 403,
}


def test_whatever_the_gateway_refuses_is_a_problem(gateway_answers):
    """Every kind of answer of the gateway's own has type, title, status and detail, and the id of the access log."""
    assert {kind: int(status) for kind, (status, _, _) in gateway_answers.items()} == KINDS
    for status, headers, problem in gateway_answers.values():
        assert list(problem) == ["type", "title", "status", "detail"]
        assert problem["status"] == int(status)
        assert problem["type"].endswith(f"://httpstatus.es/{status}")
        assert headers["x-flow-id"] == "context.requestId"


def test_a_missing_token_is_reported(gateway_answers):
    """Without a token, the answer is 401, in the words and the form of the token layer. (R23, R43)"""
    _, headers, problem = gateway_answers["UNAUTHORIZED"]

    assert problem == {
        "type": "https://httpstatus.es/401",
        "title": "Unauthorized",
        "status": 401,
        "detail": "Full authentication is required to access this resource",
    }
    assert (headers["content-type"], headers["www-authenticate"]) == ("application/json", "Bearer")


def test_other_refusals_have_the_type_of_problems(gateway_answers):
    """Everything but the token layer's answers is sent as a Problem, and says when to try again. (R16, R30)"""
    for status, headers, _ in gateway_answers.values():
        if status != "401":
            assert headers["content-type"] == "application/problem+json"
            assert ("retry-after" in headers) == (status in {"429", "503"})


def test_bodies_go_through_as_they_are(api):
    """Functions compress and decompress: the gateway would treat a body as text, and corrupt any other."""
    assert api["BinaryMediaTypes"] == ["*/*"]
    assert "MinimumCompressionSize" not in api


def test_no_function_can_take_all_concurrency(serving):
    """The stage is throttled, and logs its requests."""
    stage = serving.one("AWS::ApiGateway::Stage")
    [settings] = [each for each in stage["MethodSettings"] if each["ResourcePath"] == "/*"]
    line = json.loads(stage["AccessLogSetting"]["Format"])

    assert (settings["HttpMethod"], settings["ResourcePath"]) == ("*", "/*")
    assert (settings["ThrottlingRateLimit"], settings["ThrottlingBurstLimit"]) == (1000, 2000)
    assert settings["DataTraceEnabled"] is False
    assert {"subject", "status", "operation", "milliseconds"} <= set(line)
    assert not any("authorization" in value.lower() for value in line.values())


def test_what_needs_no_token_is_throttled_apart(serving):
    """Every public page has a separate limit, which leaves functions for clients with a token."""
    stage = serving.one("AWS::ApiGateway::Stage")
    apart = {
        each["ResourcePath"].replace("~1", "/").replace("//", "/"): each
        for each in stage["MethodSettings"]
        if each["ResourcePath"] != "/*"
    }

    assert set(apart) == {"/health", "/health/streams", "/ready", "/docs", "/openapi.json"}
    for each in apart.values():
        assert (each["HttpMethod"], each["ThrottlingRateLimit"], each["ThrottlingBurstLimit"]) == ("GET", 20, 40)


def test_the_api_is_at_the_root_of_its_domain(serving, api):
    """With a domain, the path has no prefix, and no other address works."""
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
