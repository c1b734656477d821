"""A local API Gateway: it authorizes and decompresses requests, invokes functions, and forwards streams."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import re
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import anyio
import httpx

from infra.laptop.api import (
    Api,
    AuthorizerConfig,
    GatewayRequest,
    GatewayResponse,
    MatchedOperation,
    MockResponse,
    NoMockResponse,
    Operation,
    StoredResponse,
    allows,
    integration_target,
)
from infra.laptop.asgi import Message, Receive, Send, wait_for_disconnect
from infra.laptop.functions import Function, InvocationFailed, TimedOut, TooLarge
from infra.laptop.limits import TokenBucket
from nakadi.http.hosts import ServedHosts
from nakadi.http.message import PROBLEM_MEDIA_TYPE, json_bytes
from nakadi.http.problem import RequestRefusal, plain_problem_members

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 10 * 1024 * 1024
# The gateway ends a stream after this silence.
MAX_SILENCE_SECONDS = 300.0
# The limit counts names and values together.
MAX_HEADER_BYTES = 10_240
ENCODINGS = {"gzip": 31, "deflate": 15}

# Headers of the connection, which a proxy does not forward.
HOP_BY_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host"})
SERVER_HEADERS = frozenset({"content-length", "date", "server"})


class RequestRefused(Exception):
    """Raised for a request that the gateway itself refuses."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class ClientGone(Exception):
    """Raised if the client disconnected before its request was complete."""


class Gateway:
    """The gateway, as an ASGI application. `streams` is the address of the streaming service.

    Without `authorizes`, every request passes. With `throttles`, each method keeps to its rate limit.
    """

    def __init__(
        self,
        api: Api,
        functions: Mapping[str, Function],
        streams: str,
        *,
        authorizes: bool,
        throttles: bool = False,
        served_hosts: ServedHosts | None = None,
    ) -> None:
        self._api = api
        self._served_hosts = served_hosts
        self._throttles = throttles
        self._buckets: dict[tuple[str, str], TokenBucket | None] = {}
        self._functions = functions
        self._authorizes = authorizes
        self._threads = ThreadPoolExecutor(64, thread_name_prefix="gateway")
        self._decisions = _DecisionCache()
        self._streams = streams
        self._upstream = httpx.AsyncClient(
            timeout=httpx.Timeout(30, read=MAX_SILENCE_SECONDS),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._upstream.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        request = _read_request(scope, self._api.stage)
        if (refusal := self._check_host(scope)) is not None:
            await _send_refusal(refusal, send)
            return
        try:
            await self._answer(request, receive, send)
        except RequestRefused as refused:
            log.info("%s %s: %s", request.method, request.raw_path, refused)
            await self._send_own_response(self._api.own_response(refused.kind, request, refused.message), request, send)
        except ClientGone:
            pass

    def _check_host(self, scope: Message) -> RequestRefusal | None:
        headers = list(scope["headers"])
        host = next((value for name, value in headers if name == b"host"), None)
        if self._served_hosts is None:
            return None
        return self._served_hosts.refusal_of(host, scope["raw_path"] or b"/", headers)

    async def _answer(self, request: GatewayRequest, receive: Receive, send: Send) -> None:
        request = replace(request, body=await _read_body(receive))
        if sum(len(name) + len(value) for name, value in request.headers) > MAX_HEADER_BYTES:
            raise RequestRefused("HEADERS_TOO_LARGE", "Request header fields too large")
        found = self._api.find_operation(request.method, request.raw_path)
        if found is None:
            raise RequestRefused("MISSING_AUTHENTICATION_TOKEN", "Missing Authentication Token")
        self._throttle(found.operation)
        authorizer = await self._authorize(found.operation.authorizer, request)
        if found.operation.fixed:
            await self._send_own_response(self._fixed(found.operation.fixed, request), request, send)
        elif found.operation.function:
            request = replace(request, body=self._decompress(request))
            await self._invoke(request, found, authorizer, send)
        else:
            await self._pass_through(request, found.operation, receive, send)

    def _throttle(self, operation: Operation) -> None:
        """Take a token from the method's bucket. Only the event loop runs this, so buckets need no lock."""
        if not self._throttles:
            return
        method = operation.resource, operation.method
        if method not in self._buckets:
            self._buckets[method] = self._api.bucket(operation)
        bucket = self._buckets[method]
        if bucket and not bucket.has(1, time.monotonic()):
            raise RequestRefused("THROTTLED", "Too Many Requests")
        if bucket:
            bucket.take(1)

    def _fixed(self, fixed: MockResponse | StoredResponse, request: GatewayRequest) -> GatewayResponse:
        try:
            return self._api.fixed(fixed, request)
        except NoMockResponse as refused:
            raise RequestRefused(str(refused), "Internal server error") from None

    async def _invoke_in_thread(self, function: Function, event: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function.invoke, event)

    # Authorization

    async def _authorize(
        self, authorizer: AuthorizerConfig | None, request: GatewayRequest
    ) -> Mapping[str, Any] | None:
        if authorizer is None or not self._authorizes:
            return None
        token = request.header(authorizer.header)
        if not token or not re.search(authorizer.form, token):
            raise RequestRefused("UNAUTHORIZED", "Unauthorized")
        decision = self._decisions.find(token) or await self._ask_authorizer(authorizer, token, request)
        if not allows(decision, self._api.method_arn(request)):
            raise RequestRefused("ACCESS_DENIED", "User is not authorized to access this resource")
        context = {name: _context_value(value) for name, value in decision.get("context", {}).items()}
        return {"principalId": decision["principalId"], "integrationLatency": 0, **context}

    async def _ask_authorizer(
        self, authorizer: AuthorizerConfig, token: str, request: GatewayRequest
    ) -> Mapping[str, Any]:
        event = {"type": "TOKEN", "methodArn": self._api.method_arn(request), "authorizationToken": token}
        try:
            decision: Mapping[str, Any] = await self._invoke_in_thread(self._functions[authorizer.function], event)
        except InvocationFailed as failed:
            if failed.message == "Unauthorized":
                raise RequestRefused("UNAUTHORIZED", "Unauthorized") from None
            raise RequestRefused("AUTHORIZER_FAILURE", "Internal server error") from failed
        self._decisions.store(token, decision, authorizer.seconds)
        return decision

    # Functions

    async def _invoke(
        self, request: GatewayRequest, found: MatchedOperation, authorizer: Mapping[str, Any] | None, send: Send
    ) -> None:
        event = self._api.event(request, found, authorizer)
        function = self._functions[found.operation.function]
        try:
            async with asyncio.timeout(found.operation.timeout):
                answer = await self._invoke_in_thread(function, event)
        except (TimeoutError, TimedOut):
            raise RequestRefused("INTEGRATION_TIMEOUT", "Endpoint request timed out") from None
        except TooLarge:
            raise RequestRefused("REQUEST_TOO_LARGE", "Request Too Long") from None
        except InvocationFailed as failed:
            log.warning("%s: %s", function.definition.name, failed)
            raise RequestRefused("DEFAULT_5XX", "Internal server error") from None
        await self._send_proxy_response(answer, request, send)

    async def _send_proxy_response(self, answer: Any, request: GatewayRequest, send: Send) -> None:
        """Send a proxy response. The gateway decodes base64 bodies only if the accepted type is binary in the API."""
        try:
            headers = list(_response_headers(answer))
            body = (answer.get("body") or "").encode()
            status = int(answer["statusCode"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise RequestRefused("DEFAULT_5XX", "Internal server error") from None
        if answer.get("isBase64Encoded") and self._api.is_binary(request.header("accept") or ""):
            body = base64.b64decode(body)
        await self._send(status, headers, body, request, send)

    async def _send_own_response(self, own_response: GatewayResponse, request: GatewayRequest, send: Send) -> None:
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in own_response.headers.items()]
        await self._send(own_response.status, headers, own_response.body, request, send)

    async def _send(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, request: GatewayRequest, send: Send
    ) -> None:
        headers.append((b"x-amzn-requestid", request.id.encode()))
        if self._compresses(request, body):
            headers.append((b"content-encoding", b"gzip"))
            body = gzip.compress(body, 4, mtime=0)
        if status not in (204, 304):
            headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})

    def _compresses(self, request: GatewayRequest, body: bytes) -> bool:
        minimum = self._api.minimum_compression_size
        accepts_gzip = "gzip" in (request.header("accept-encoding") or "")
        return accepts_gzip and minimum is not None and len(body) >= minimum

    def _decompress(self, request: GatewayRequest) -> bytes:
        encoding = (request.header("content-encoding") or "identity").lower()
        if self._api.minimum_compression_size is None or encoding == "identity":
            return request.body
        if encoding not in ENCODINGS:
            raise RequestRefused("UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type")
        try:
            return zlib.decompress(request.body, ENCODINGS[encoding])
        except zlib.error:
            raise RequestRefused("UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type") from None

    # Streams

    async def _pass_through(self, request: GatewayRequest, operation: Operation, receive: Receive, send: Send) -> None:
        """Forward each byte immediately. When one side disconnects, close the other connection."""
        headers = [
            *((name, value) for name, value in request.headers if name not in HOP_BY_HOP_HEADERS),
            ("x-forwarded-for", request.address),
            ("x-forwarded-proto", "http"),
            *operation.headers.items(),
        ]
        target = integration_target(self._api.stage, request)
        # httpx's client would add its own accept-encoding to a request that it builds.
        upstream_request = httpx.Request(
            request.method, self._streams + target, headers=_encode_headers(headers), content=request.body
        )
        # Cancelling a task instead of a scope would interrupt httpx while it closes the connection, and leave it open.
        passing = anyio.CancelScope(deadline=anyio.current_time() + operation.timeout)
        leaving = asyncio.create_task(wait_for_disconnect(receive, passing.cancel))
        answer: httpx.Response | None = None
        try:
            with passing:
                answer = await self._request_upstream(upstream_request, request)
                await self._forward(answer, request, send)
            is_late = passing.cancelled_caught and not leaving.done()
        finally:
            leaving.cancel()
            await asyncio.wait({leaving})
        if is_late:
            log.warning("%s %s: cut off after %g seconds", request.method, request.raw_path, operation.timeout)
            if answer is None:
                raise RequestRefused("INTEGRATION_TIMEOUT", "Endpoint request timed out")

    async def _request_upstream(self, upstream_request: httpx.Request, request: GatewayRequest) -> httpx.Response:
        try:
            return await self._upstream.send(upstream_request, stream=True)
        except httpx.TransportError as error:
            log.warning("%s %s: the service did not answer: %r", request.method, request.raw_path, error)
            raise RequestRefused("INTEGRATION_FAILURE", "Internal server error") from error

    async def _forward(self, answer: httpx.Response, request: GatewayRequest, send: Send) -> None:
        try:
            headers = [
                (name.lower(), value)
                for name, value in answer.headers.raw
                if name.decode().lower() not in HOP_BY_HOP_HEADERS | SERVER_HEADERS - {"content-length"}
            ]
            headers.append((b"x-amzn-requestid", request.id.encode()))
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx.TransportError as error:
            # Without a last chunk, the client sees that something is missing.
            log.warning("%s %s: the service broke off: %r", request.method, request.raw_path, error)
            return
        finally:
            await answer.aclose()
        await send({"type": "http.response.body"})


class _DecisionCache:
    """The cached decisions of authorizers by token."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def find(self, token: str) -> Mapping[str, Any] | None:
        with self._lock:
            until, decision = self._kept.get(token, (0.0, {}))
        return decision if until > time.monotonic() else None

    def store(self, token: str, decision: Mapping[str, Any], seconds: int) -> None:
        with self._lock:
            self._kept[token] = (time.monotonic() + seconds, decision)


async def _send_refusal(refusal: RequestRefusal, send: Send) -> None:
    """Refuse a request without reading its body, like the embedded broker."""
    body = json_bytes(plain_problem_members(refusal.status, refusal.detail))
    headers = [
        (b"content-type", PROBLEM_MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refusal.status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _read_request(scope: Message, stage: str) -> GatewayRequest:
    """Read a request. Its path begins with the stage at the gateway's own address, and does not at a domain."""
    client = scope.get("client") or ("127.0.0.1", 0)
    host, port = scope.get("server") or ("127.0.0.1", 0)
    path = scope["raw_path"].decode("latin-1") or "/"
    return GatewayRequest(
        method=scope["method"],
        raw_path=path.removeprefix(f"/{stage}") if path.startswith(f"/{stage}/") else path,
        query=scope["query_string"].decode("latin-1"),
        headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
        body=b"",
        address=client[0],
        own_url=f"http://{host}:{port}/{stage}",
    )


async def _read_body(receive: Receive) -> bytes:
    whole = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        # Read an oversized body to its end, since the client reads the answer only then.
        if len(whole) <= MAX_BODY_BYTES:
            whole += message.get("body", b"")
        more = message.get("more_body", False)
    if len(whole) > MAX_BODY_BYTES:
        raise RequestRefused("REQUEST_TOO_LARGE", "Request Too Long")
    return bytes(whole)


def _context_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _response_headers(answer: Mapping[str, Any]) -> Iterable[tuple[bytes, bytes]]:
    several = {name.lower(): values for name, values in (answer.get("multiValueHeaders") or {}).items()}
    single = {name.lower(): [value] for name, value in (answer.get("headers") or {}).items()}
    for name, values in {**single, **several}.items():
        for value in values:
            if name not in HOP_BY_HOP_HEADERS | SERVER_HEADERS:
                yield name.encode("latin-1"), str(value).encode("latin-1", "replace")


def _encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
