"""Reads the template of a REST API as API Gateway does."""

import json
from dataclasses import replace

import pytest

from infra.laptop.api import INTEGRATION, Api, GatewayRequest, NoMockResponse, allows, integration_target
from infra.laptop.templates import Template
from nakadi.http.api_gateway import request_from_event

FUNCTION = "arn:aws:apigateway:eu-central-1:lambda:path/2015-03-31/functions/{}/invocations"
ANY = "x-amazon-apigateway-any-method"


def integrated_with(function, **more):
    return {"x-amazon-apigateway-integration": {"type": "aws_proxy", "uri": FUNCTION.format(function)}, **more}


STREAM = {
    "security": [{"token": []}],
    "x-amazon-apigateway-integration": {
        "type": "http_proxy",
        "uri": "http://balancer:80/types/{name}/events",
        "timeoutInMillis": 900_000,
        "requestParameters": {
            "integration.request.path.name": "method.request.path.name",
            "integration.request.header.X-Nakadi": "'gateway'",
        },
    },
}

BODY = {
    "paths": {
        "/types": {"get": integrated_with("types"), ANY: integrated_with("types")},
        "/types/{name}": {"get": integrated_with("one", security=[{"token": []}])},
        "/types/{name}/events": {"get": STREAM, ANY: integrated_with("publish")},
        "/types/special": {"get": integrated_with("special")},
        "/{proxy+}": {ANY: integrated_with("rest")},
    },
    "components": {
        "securitySchemes": {
            "token": {
                "name": "Authorization",
                "x-amazon-apigateway-authorizer": {
                    "authorizerUri": FUNCTION.format("authorizer"),
                    "authorizerResultTtlInSeconds": 60,
                },
            }
        }
    },
    "x-amazon-apigateway-gateway-responses": {
        "UNAUTHORIZED": {
            "statusCode": "401",
            "responseParameters": {
                "gatewayresponse.header.www-authenticate": "'Bearer'",
                "gatewayresponse.header.x-flow-id": "method.request.header.X-Flow-Id",
                "gatewayresponse.header.x-id": "context.requestId",
            },
            "responseTemplates": {"application/json": '{"detail":$context.error.messageString}'},
        },
        "DEFAULT_4XX": {"statusCode": "400"},
        "THROTTLED": {"statusCode": "429"},
    },
}


@pytest.fixture
def build_api(tmp_path):
    def build(*, variables=None, **properties):
        content = {
            "Rest": {"Type": "AWS::ApiGateway::RestApi", "Properties": {"Body": BODY, **properties}},
            "Stage": {
                "Type": "AWS::ApiGateway::Stage",
                "Properties": {"StageName": "api", **({"Variables": variables} if variables else {})},
            },
        }
        path = tmp_path / "stack.template.json"
        path.write_text(json.dumps({"Resources": content}))
        return Api(Template(path))

    return build


@pytest.fixture
def api(build_api):
    return build_api()


def make_request(method="GET", raw_path="/types", query="", body=b"", **headers):
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return GatewayRequest(method=method, raw_path=raw_path, query=query, headers=pairs, body=body)


@pytest.mark.parametrize(
    ("method", "path", "function"),
    [
        ("GET", "/types", "types"),
        ("PATCH", "/types", "types"),
        ("GET", "/types/", "types"),
        ("GET", "/types/a", "one"),
        ("GET", "/types/special", "special"),
        ("POST", "/types/a/events", "publish"),
        ("DELETE", "/no/such/thing", "rest"),
    ],
)
def test_the_most_particular_resource_decides(api, method, path, function):
    """Literal segments take precedence over parameters, and both over the catch-all."""
    assert api.find_operation(method, path).operation.function == function


def test_a_resource_without_the_method_has_nothing(api):
    """If the most specific resource lacks the method, no other resource answers."""
    assert api.find_operation("POST", "/types/a") is None


def test_parameters_are_decoded(api):
    """The values of path parameters are decoded, and the path itself stays unchanged."""
    found = api.find_operation("GET", "/types/gr%C3%BC%2Fn")
    event = api.event(make_request(raw_path="/types/gr%C3%BC%2Fn"), found, None)
    assert event["pathParameters"] == {"name": "grü/n"}
    assert event["path"] == "/types/gr%C3%BC%2Fn"
    assert event["resource"] == "/types/{name}"


def test_functions_get_the_variables_of_the_stage(api, build_api):
    """An event has the variables of the stage, with the URL of this gateway instead of an address on AWS."""
    request = replace(make_request(), own_url="http://127.0.0.1:8000")
    there = build_api(variables={"broker_url": "https://x.execute-api.eu-central-1.amazonaws.com/api", "a": "b"})
    event = there.event(request, there.find_operation("GET", "/types"), None)
    assert event["stageVariables"] == {"broker_url": "http://127.0.0.1:8000", "a": "b"}
    assert api.event(request, api.find_operation("GET", "/types"), None)["stageVariables"] is None


def test_values_that_come_several_times_are_all_there(api):
    """If a parameter or header comes several times, the multi-value members have all values, and the single-value
    members the last.
    """
    event = api.event(make_request(query="a=1&a=%202&b="), api.find_operation("GET", "/types"), None)
    assert event["multiValueQueryStringParameters"] == {"a": ["1", " 2"], "b": [""]}
    assert event["queryStringParameters"] == {"a": " 2", "b": ""}


def test_what_is_not_there_is_null(api):
    """Missing members are null, as in the events that functions get."""
    event = api.event(make_request(), api.find_operation("GET", "/types"), None)
    assert [event[name] for name in ("headers", "queryStringParameters", "pathParameters", "body")] == [None] * 4
    assert "authorizer" not in event["requestContext"]


def test_bodies_are_text_or_binary_as_the_api_says(api, build_api):
    """Without binary media types, bodies that are not text are corrupted."""
    sent = make_request("POST", body=b"\xff", content_type="application/json")
    found = api.find_operation("POST", "/types")
    assert api.event(sent, found, None)["body"] == "\N{REPLACEMENT CHARACTER}"
    binary = build_api(BinaryMediaTypes=["*/*"]).event(sent, found, None)
    assert binary["isBase64Encoded"] is True
    assert request_from_event(binary).body == b"\xff"


def test_the_authorizer_of_an_operation(api):
    """An operation has its authorizer; some operations have none."""
    assert api.find_operation("GET", "/types").operation.authorizer is None
    authorizer = api.find_operation("GET", "/types/a").operation.authorizer
    assert (authorizer.function, authorizer.header, authorizer.seconds) == ("authorizer", "authorization", 60)


def test_the_functions_that_it_needs(api):
    """The API needs the functions that answer its operations and, if tokens are checked, the authorizer."""
    answering = {"types", "one", "publish", "special", "rest"}
    assert api.functions(authorizes=False) == answering
    assert api.functions(authorizes=True) == answering | {"authorizer"}


def test_streams_lead_to_the_service(api):
    """The path of the request to the streaming service begins with the name of the stage; the operation has the headers
    that the integration adds.
    """
    operation = api.find_operation("GET", "/types/a/events").operation
    assert operation.function == ""
    assert operation.timeout == 900
    assert operation.headers == {"X-Nakadi": "gateway"}
    request = make_request(raw_path="/types/a/events", query="x=%20")
    assert integration_target(api.stage, request) == "/api/types/a/events?x=%20"


def test_the_gateway_speaks_as_it_was_configured(api):
    """The gateway's own answers are as configured: it inserts its messages into templates, and headers come from
    constants, the request or its context.
    """
    request = make_request(x_flow_id="abc")
    response = api.own_response("UNAUTHORIZED", request, 'not "you"')
    assert response.status == 401
    assert json.loads(response.body) == {"detail": 'not "you"'}
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-flow-id"] == "abc"
    assert response.headers["x-id"] == request.id
    assert "x-flow-id" not in api.own_response("UNAUTHORIZED", make_request(), "").headers


def test_what_it_was_not_given_it_says_in_its_own_way(api):
    """For an error without its own answer, the gateway uses the configured answer for its class."""
    assert api.own_response("REQUEST_TOO_LARGE", make_request(), "too long").status == 400
    response = api.own_response("INTEGRATION_TIMEOUT", make_request(), "too late")
    assert (response.status, json.loads(response.body)) == (504, {"message": "too late"})


@pytest.mark.parametrize(
    ("statements", "allowed"),
    [
        ([("Allow", "arn:api/stage/*")], True),
        ([("Allow", "arn:api/stage/POST/*")], False),
        ([("Allow", ["arn:other/*", "arn:api/?tage/GET/types"])], True),
        ([("Allow", "*"), ("Deny", "arn:api/stage/GET/types")], False),
        ([], False),
    ],
)
def test_resource_policies_decide(statements, allowed):
    """A statement has to allow the request, and none may deny it."""
    policy = {"policyDocument": {"Statement": [{"Effect": effect, "Resource": each} for effect, each in statements]}}
    assert allows(policy, "arn:api/stage/GET/types") is allowed


def mock_integration(status, text, **integration):
    return {
        "type": "mock",
        "passthroughBehavior": "never",
        "requestTemplates": {"application/json": json.dumps({"statusCode": status})},
        "responses": {
            "default": {
                "statusCode": str(status),
                "responseParameters": {
                    "method.response.header.content-type": "'text/plain'",
                    "method.response.header.x-flow-id": "context.requestId",
                },
                "responseTemplates": {"application/json": text},
            }
        },
        **integration,
    }


@pytest.fixture
def build_mocked_api(build_api):
    """A function that builds an API whose only operation is a mock, with further members of its integration."""

    def build(**integration):
        body = {
            **BODY,
            "paths": {"/page": {"get": {INTEGRATION: mock_integration(405, "no $context.httpMethod", **integration)}}},
        }
        return build_api(Body=body, BinaryMediaTypes=["*/*"])

    return build


def test_a_mock_answers_by_itself(build_mocked_api):
    """The mock's answer has its headers, the request's id, and its method."""
    api = build_mocked_api(contentHandling="CONVERT_TO_TEXT")
    request = make_request(raw_path="/page")
    response = api.fixed(api.find_operation("GET", "/page").operation.fixed, request)

    assert (response.status, response.body) == (405, b"no GET")
    assert response.headers == {"content-type": "text/plain", "x-flow-id": request.id}


@pytest.mark.parametrize(
    ("integration", "headers", "kind"),
    [
        ({}, {}, "DEFAULT_5XX"),
        ({"contentHandling": "CONVERT_TO_TEXT"}, {"content_type": "image/png"}, "UNSUPPORTED_MEDIA_TYPE"),
    ],
)
def test_a_template_that_is_not_used_is_no_answer(build_mocked_api, integration, headers, kind):
    """There is no template for bytes, or for a content type that the API does not name."""
    api = build_mocked_api(**integration)

    with pytest.raises(NoMockResponse, match=kind):
        api.fixed(api.find_operation("GET", "/page").operation.fixed, make_request(raw_path="/page", **headers))


def test_an_object_is_read_from_the_file_that_would_be_uploaded(build_api, tmp_path):
    """The asset manifest beside the template says which file would be uploaded under the key of the object."""
    (tmp_path / "page.html").write_text("<html>")
    files = {"x": {"source": {"path": "page.html"}, "destinations": {"here": {"objectKey": "x.html"}}}}
    (tmp_path / "stack.assets.json").write_text(json.dumps({"files": files}))
    fetched = {
        "type": "aws",
        "uri": "arn:aws:apigateway:eu-central-1:s3:path/bucket/x.html",
        "responses": {"200": {"statusCode": "200", "responseParameters": {}}, "default": {"statusCode": "503"}},
    }
    api = build_api(Body={**BODY, "paths": {"/page": {"get": {INTEGRATION: fetched}}}})

    operation = api.find_operation("GET", "/page").operation
    assert api.fixed(operation.fixed, make_request(raw_path="/page")).body == b"<html>"
