"""The gateway between a client and a streaming service, and the requests that it passes on."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from infra.laptop.api import Api
from infra.laptop.functions import FunctionDefinition, InvocationFailed, TimedOut
from infra.laptop.gateway import Gateway
from infra.laptop.laptop import GatewayServer
from infra.laptop.templates import Template
from nakadi.http.hosts import choose_served_hosts
from tests.infra.laptop.test_api import BODY
from tests.support.patience import PATIENCE


class AnsweringFunction:
    """A function that gives one answer, or raises it if it is an exception, and records its events."""

    def __init__(self, answer):
        self.definition = FunctionDefinition(name="f", folder=None, handler="", timeout=1, memory=1, environment={})
        self.answer = answer
        self.events = []

    def invoke(self, event):
        self.events.append(event)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def lambda_response(body="", status=200, **headers):
    return {"statusCode": status, "multiValueHeaders": {name: [value] for name, value in headers.items()}, "body": body}


POLICY = {
    "principalId": "ann",
    "policyDocument": {"Statement": [{"Effect": "Allow", "Resource": "*"}]},
    "context": {"subject": "ann", "big": True},
}


def throttled_operation(path, method, *, burst):
    """An operation with a limit of `burst` requests; during a test, its bucket gets almost no tokens."""
    rates = {"ThrottlingRateLimit": 0.001, "ThrottlingBurstLimit": burst}
    return {"ResourcePath": path, "HttpMethod": method, **rates}


RATES = [throttled_operation("/*", "*", burst=20), throttled_operation("/~1types~1special", "GET", burst=2)]


class UpstreamService:
    """A streaming service that answers one request, and returns it."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._listening.settimeout(PATIENCE)

    def accept_connection(self):
        connection, _ = self._listening.accept()
        connection.settimeout(PATIENCE)
        head = b""
        while b"\r\n\r\n" not in head and (received := connection.recv(65536)):
            head += received
        return connection, head.decode().lower()

    def close(self):
        self._listening.close()


@pytest.fixture
def service():
    with closing(UpstreamService()) as there:
        yield there


LATE = {"type": "http_proxy", "uri": "http://balancer:80/types/{name}/late", "timeoutInMillis": 1000}
LATE_PATH = {"/types/{name}/late": {"get": {"x-amazon-apigateway-integration": LATE}}}
WITH_LATE = {**BODY, "paths": {**BODY["paths"], **LATE_PATH}}

STACK = {
    "Resources": {
        "Rest": {"Type": "AWS::ApiGateway::RestApi", "Properties": {"Body": WITH_LATE, "BinaryMediaTypes": ["*/*"]}},
        "Stage": {"Type": "AWS::ApiGateway::Stage", "Properties": {"StageName": "api", "MethodSettings": RATES}},
    }
}


@pytest.fixture
def functions():
    return {
        name: AnsweringFunction(lambda_response(name)) for name in ("types", "one", "publish", "special", "rest")
    } | {"authorizer": AnsweringFunction(POLICY)}


@pytest.fixture
def client(functions, service, tmp_path):
    (tmp_path / "stack.template.json").write_text(json.dumps(STACK))
    api = Api(Template(tmp_path / "stack.template.json"))
    gateway = Gateway(api, functions, service.url, authorizes=True, throttles=True)
    with (
        closing(GatewayServer(gateway, 0)) as serving,
        httpx.Client(base_url=serving.url, timeout=PATIENCE) as client,
    ):
        yield client


def test_without_authorization_the_names_of_the_machine_are_served(tmp_path, functions, service):
    """Without authorization, another name gets 421, and a page of another host gets 403, as with the embedded
    broker. (R290, R291)
    """
    (tmp_path / "stack.template.json").write_text(json.dumps(STACK))
    api = Api(Template(tmp_path / "stack.template.json"))
    hosts = choose_served_hosts("127.0.0.1", is_authenticated=False, names=())
    gateway = Gateway(api, functions, service.url, authorizes=False, served_hosts=hosts)
    with closing(GatewayServer(gateway, 0)) as serving, httpx.Client(base_url=serving.url, timeout=PATIENCE) as client:
        told = [
            client.post("/publish", content="[]", headers=headers).status_code
            for headers in ({}, {"Host": "evil.example"}, {"Origin": "http://evil.example"})
        ]
    assert told == [200, 421, 403]


def test_a_function_answers(client, functions):
    """The answer has the function's status, headers and body, and no headers about the connection."""
    functions["types"].answer = lambda_response("[]", 201, etag="x", connection="close")
    answer = client.get("/types")
    assert (answer.status_code, answer.text, answer.headers["etag"]) == (201, "[]", "x")
    assert "connection" not in answer.headers
    assert answer.headers["x-amzn-requestid"] == functions["types"].events[0]["requestContext"]["requestId"]


def test_bodies_in_base64_become_bytes(client, functions):
    """A function's body in base64 is sent as bytes, because the API treats every body as binary."""
    functions["types"].answer = {**lambda_response("/w=="), "isBase64Encoded": True}
    assert client.get("/types").content == b"\xff"


def test_without_a_token_no_authentication(client, functions):
    """Without a token, the answer is the one that the API defines."""
    answer = client.get("/types/a")
    assert (answer.status_code, answer.json()) == (401, {"detail": "Unauthorized"})
    assert functions["authorizer"].events == []


def test_the_authorizers_word_is_kept(client, functions):
    """The authorizer is called once for a token, and its statements about the subject reach the function as strings."""
    for _ in range(2):
        assert client.get("/types/a", headers={"Authorization": "Bearer x"}).text == "one"
    [asked] = functions["authorizer"].events
    assert asked["authorizationToken"] == "Bearer x"
    assert asked["methodArn"].endswith("/api/GET/types/a")
    told = functions["one"].events[1]["requestContext"]["authorizer"]
    assert (told["subject"], told["big"], told["principalId"]) == ("ann", "true", "ann")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (InvocationFailed("Exception", "Unauthorized"), 401),
        (InvocationFailed("KeyError", "'x'"), 500),
        ({**POLICY, "policyDocument": {"Statement": []}}, 400),
    ],
)
def test_a_token_that_is_not_good(client, functions, answer, status):
    """Only the exact word of the authorizer for a bad token means 401; its other errors are faults; a policy can
    refuse, too.
    """
    functions["authorizer"].answer = answer
    assert client.get("/types/a", headers={"Authorization": "Bearer x"}).status_code == status
    assert functions["one"].events == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [(InvocationFailed("ValueError", "x"), 502), (TimedOut("Sandbox.Timedout", "x"), 504), ({"no": 1}, 502)],
)
def test_a_function_that_fails(client, functions, answer, status):
    """If a function fails, the gateway answers in its place."""
    functions["types"].answer = answer
    assert client.get("/types").status_code == status


def test_a_method_takes_as_many_requests_as_the_stage_lets_it(client, functions):
    """Each method has its own limit, or the limit of all; excess requests reach neither authorizer nor function."""
    assert [client.get("/types/special").status_code for _ in range(3)] == [200, 200, 429]
    assert [client.get("/types").status_code for _ in range(21)].count(429) == 1
    assert len(functions["special"].events) == 2


def test_too_large_a_body(client):
    """The gateway accepts at most 10 MB."""
    assert client.post("/types", content=b"x" * (10 * 1024 * 1024 + 1)).status_code == 400


def test_too_large_a_head(client):
    """Headers beyond 10 KB are refused, as the gateway on AWS does before it looks at anything else."""
    answer = client.get("/types", headers={"x-nakadi-cursors": "c" * 10_240})

    assert answer.status_code == 431


def test_streams_are_passed_through(client, service):
    """Request and answer are unchanged; bytes come at once, and a client that leaves is noticed."""

    async def stream_chunks():
        headers = {"Authorization": "Bearer x", "Accept-Encoding": "identity"}
        async with (
            httpx.AsyncClient(base_url=client.base_url, timeout=PATIENCE) as other,
            other.stream("GET", "/types/a/events?x=%20", headers=headers) as answer,
        ):
            chunks = answer.aiter_raw()
            assert await anext(chunks) == b"first"
            return dict(answer.headers)

    async def stream_through_gateway():
        receiving = asyncio.create_task(stream_chunks())
        connection, head = await asyncio.to_thread(service.accept_connection)
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Id: 7\r\n\r\n5\r\nfirst\r\n")
            headers = await receiving
            assert await asyncio.to_thread(connection.recv, 1) == b""
        return head, headers

    head, headers = asyncio.run(stream_through_gateway())
    assert head.startswith("get /api/types/a/events?x=%20 http/1.1")
    assert "authorization: bearer x" in head
    assert "accept-encoding: identity" in head
    assert "x-nakadi: gateway" in head
    assert headers["x-id"] == "7"


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Content-Length: 100"])
def test_a_stream_that_breaks_off_breaks_off_for_the_client(client, service, caplog, framing):
    """The client sees that something is missing, and the log names the request and the reason."""

    def break_off():
        connection, _ = service.accept_connection()
        with connection:
            connection.sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\nfirst\r\n".encode())

    with ThreadPoolExecutor(1) as threads:
        breaking = threads.submit(break_off)
        with (
            client.stream("GET", "/types/a/events", headers={"Authorization": "Bearer x"}) as answer,
            pytest.raises(httpx.RemoteProtocolError),
        ):
            answer.read()
        breaking.result()

    [line] = [each for each in caplog.messages if "broke off" in each]
    assert line.startswith("GET /types/a/events: the service broke off: RemoteProtocolError(")


def test_a_service_that_does_not_answer_in_time(client, service, caplog):
    """The gateway answers in place of the service, logs this, and closes its connection to the service."""
    # The operating system takes the connection and the request; nobody answers.
    assert client.get("/types/a/late").status_code == 504
    connection, _ = service.accept_connection()
    with connection:
        assert connection.recv(1) == b""
    assert "GET /types/a/late: cut off after 1 seconds" in caplog.messages


def test_a_service_that_is_not_there(client, service, caplog):
    """The gateway answers in place of the service, and logs the reason."""
    service.close()
    assert client.get("/types/a/events", headers={"Authorization": "Bearer x"}).status_code == 504
    assert "GET /types/a/events: the service did not answer: ConnectError(" in caplog.text


def test_a_path_may_begin_with_the_stage(client, functions):
    """The stage is removed from the path, as at the gateway's own address; a path that only begins with the same
    letters is different.
    """
    assert client.get("/api/types").status_code == client.get("/types").status_code == 200
    assert [each["path"] for each in functions["types"].events] == ["/types", "/types"]
    assert client.get("/apitypes").text == "rest"
