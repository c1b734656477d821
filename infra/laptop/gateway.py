"""API Gateway on a laptop: it asks the authorizer, unpacks, invokes functions, and passes streams through."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import re
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import anyio
import httpx

from infra.laptop.api import Api, Asked, Authorizer, Found, Mock, NotMocked, Object, Operation, Said, allows, target_of
from infra.laptop.functions import Failed, Function, TimedOut, TooLarge
from infra.laptop.limits import Bucket
from nakadi.http.hosts import ServedHosts
from nakadi.http.message import PROBLEM_MEDIA_TYPE, json_bytes
from nakadi.http.problem import RequestRefusal, plain_problem_members

log = logging.getLogger(__name__)

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MOST_BYTES = 10 * 1024 * 1024
# A stream that says nothing for so long is ended.
LONGEST_SILENCE = 300.0
# Names and values together.
MOST_HEADER_BYTES = 10_240
ENCODINGS = {"gzip": 31, "deflate": 15}

# What belongs to a connection, and not to what travels on it.
OF_A_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "host"})
ADDED_BY_US = frozenset({"content-length", "date", "server"})


class Refused(Exception):
    """Raised for a request that the gateway answers by itself."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Gone(Exception):
    """Raised when the client has left before its request was whole."""


class Gateway:
    """An ASGI application. `streams` is where the load balancer leads to. If it does not authorize, all may pass.

    With `throttles`, a method takes as many requests a second as the stage lets it.
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
        self._buckets: dict[tuple[str, str], Bucket | None] = {}
        self._functions = functions
        self._authorizes = authorizes
        self._threads = ThreadPoolExecutor(64, thread_name_prefix="gateway")
        self._decisions = _Decisions()
        self._streams = streams
        self._upstream = httpx.AsyncClient(
            timeout=httpx.Timeout(30, read=LONGEST_SILENCE),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._upstream.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        asked = _asked(scope, self._api.stage)
        if (refusal := self._refusal_of_host(scope)) is not None:
            await _send_refusal(refusal, send)
            return
        try:
            await self._answer(asked, receive, send)
        except Refused as refused:
            log.info("%s %s: %s", asked.method, asked.raw_path, refused)
            await self._say(self._api.said(refused.kind, asked, refused.message), asked, send)
        except Gone:
            pass

    def _refusal_of_host(self, scope: Message) -> RequestRefusal | None:
        headers = list(scope["headers"])
        host = next((value for name, value in headers if name == b"host"), None)
        if self._served_hosts is None:
            return None
        return self._served_hosts.refusal_of(host, scope["raw_path"] or b"/", headers)

    async def _answer(self, asked: Asked, receive: Receive, send: Send) -> None:
        asked = replace(asked, body=await _body(receive))
        if sum(len(name) + len(value) for name, value in asked.headers) > MOST_HEADER_BYTES:
            raise Refused("HEADERS_TOO_LARGE", "Request header fields too large")
        found = self._api.found(asked.method, asked.raw_path)
        if found is None:
            raise Refused("MISSING_AUTHENTICATION_TOKEN", "Missing Authentication Token")
        self._let_in(found.operation)
        authorizer = await self._authorized(found.operation.authorizer, asked)
        if found.operation.fixed:
            await self._say(self._fixed(found.operation.fixed, asked), asked, send)
        elif found.operation.function:
            asked = replace(asked, body=self._unpacked(asked))
            await self._invoke(asked, found, authorizer, send)
        else:
            await self._pass_through(asked, found.operation, receive, send)

    def _let_in(self, operation: Operation) -> None:
        """Only ever on the event loop, so that buckets need no lock."""
        if not self._throttles:
            return
        method = operation.resource, operation.method
        if method not in self._buckets:
            self._buckets[method] = self._api.bucket(operation)
        bucket = self._buckets[method]
        if bucket and not bucket.has(1, time.monotonic()):
            raise Refused("THROTTLED", "Too Many Requests")
        if bucket:
            bucket.take(1)

    def _fixed(self, fixed: Mock | Object, asked: Asked) -> Said:
        try:
            return self._api.fixed(fixed, asked)
        except NotMocked as refused:
            raise Refused(str(refused), "Internal server error") from None

    async def _in_a_thread(self, function: Function, event: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function.invoke, event)

    # Who is asking

    async def _authorized(self, authorizer: Authorizer | None, asked: Asked) -> Mapping[str, Any] | None:
        if authorizer is None or not self._authorizes:
            return None
        token = asked.header(authorizer.header)
        if not token or not re.search(authorizer.form, token):
            raise Refused("UNAUTHORIZED", "Unauthorized")
        decision = self._decisions.of(token) or await self._decided(authorizer, token, asked)
        if not allows(decision, self._api.method_arn(asked)):
            raise Refused("ACCESS_DENIED", "User is not authorized to access this resource")
        told = {name: _as_told(value) for name, value in decision.get("context", {}).items()}
        return {"principalId": decision["principalId"], "integrationLatency": 0, **told}

    async def _decided(self, authorizer: Authorizer, token: str, asked: Asked) -> Mapping[str, Any]:
        event = {"type": "TOKEN", "methodArn": self._api.method_arn(asked), "authorizationToken": token}
        try:
            decision: Mapping[str, Any] = await self._in_a_thread(self._functions[authorizer.function], event)
        except Failed as failed:
            if failed.message == "Unauthorized":
                raise Refused("UNAUTHORIZED", "Unauthorized") from None
            raise Refused("AUTHORIZER_FAILURE", "Internal server error") from failed
        self._decisions.keep(token, decision, authorizer.seconds)
        return decision

    # Functions

    async def _invoke(self, asked: Asked, found: Found, authorizer: Mapping[str, Any] | None, send: Send) -> None:
        event = self._api.event(asked, found, authorizer)
        function = self._functions[found.operation.function]
        try:
            async with asyncio.timeout(found.operation.timeout):
                answer = await self._in_a_thread(function, event)
        except (TimeoutError, TimedOut):
            raise Refused("INTEGRATION_TIMEOUT", "Endpoint request timed out") from None
        except TooLarge:
            raise Refused("REQUEST_TOO_LARGE", "Request Too Long") from None
        except Failed as failed:
            log.warning("%s: %s", function.described.name, failed)
            raise Refused("DEFAULT_5XX", "Internal server error") from None
        await self._tell(answer, asked, send)

    async def _tell(self, answer: Any, asked: Asked, send: Send) -> None:
        """A proxy response as the client gets it. Bodies in base64 become bytes only where the API knows of them."""
        try:
            headers = list(_response_headers(answer))
            body = (answer.get("body") or "").encode()
            status = int(answer["statusCode"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise Refused("DEFAULT_5XX", "Internal server error") from None
        if answer.get("isBase64Encoded") and self._api.is_binary(asked.header("accept") or ""):
            body = base64.b64decode(body)
        await self._send(status, headers, body, asked, send)

    async def _say(self, said: Said, asked: Asked, send: Send) -> None:
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in said.headers.items()]
        await self._send(said.status, headers, said.body, asked, send)

    async def _send(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, asked: Asked, send: Send
    ) -> None:
        headers.append((b"x-amzn-requestid", asked.id.encode()))
        if self._packs(asked, body):
            headers.append((b"content-encoding", b"gzip"))
            body = gzip.compress(body, 4, mtime=0)
        if status not in (204, 304):
            headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if asked.method == "HEAD" else body})

    def _packs(self, asked: Asked, body: bytes) -> bool:
        least = self._api.least_packed
        wanted = "gzip" in (asked.header("accept-encoding") or "")
        return wanted and least is not None and len(body) >= least

    def _unpacked(self, asked: Asked) -> bytes:
        encoding = (asked.header("content-encoding") or "identity").lower()
        if self._api.least_packed is None or encoding == "identity":
            return asked.body
        if encoding not in ENCODINGS:
            raise Refused("UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type")
        try:
            return zlib.decompress(asked.body, ENCODINGS[encoding])
        except zlib.error:
            raise Refused("UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type") from None

    # Streams

    async def _pass_through(self, asked: Asked, operation: Operation, receive: Receive, send: Send) -> None:
        """Every byte as soon as it comes; when one side leaves, the other connection is closed."""
        headers = [
            *((name, value) for name, value in asked.headers if name not in OF_A_CONNECTION),
            ("x-forwarded-for", asked.address),
            ("x-forwarded-proto", "http"),
            *operation.headers.items(),
        ]
        target = target_of(self._api.stage, asked)
        # Not by the client, which would add what it can unpack.
        request = httpx.Request(asked.method, self._streams + target, headers=_raw(headers), content=asked.body)
        # Not by cancelling a task: what the client of the load balancer closes on its way out would stay half open.
        passing = anyio.CancelScope(deadline=anyio.current_time() + operation.timeout)
        leaving = asyncio.create_task(_left(receive, passing.cancel))
        answer: httpx.Response | None = None
        try:
            with passing:
                answer = await self._answer_of_service(request, asked)
                await self._pass_on(answer, asked, send)
            is_late = passing.cancelled_caught and not leaving.done()
        finally:
            leaving.cancel()
            await asyncio.wait({leaving})
        if is_late:
            log.warning("%s %s: cut off after %g seconds", asked.method, asked.raw_path, operation.timeout)
            if answer is None:
                raise Refused("INTEGRATION_TIMEOUT", "Endpoint request timed out")

    async def _answer_of_service(self, request: httpx.Request, asked: Asked) -> httpx.Response:
        try:
            return await self._upstream.send(request, stream=True)
        except httpx.TransportError as error:
            log.warning("%s %s: the service did not answer: %r", asked.method, asked.raw_path, error)
            raise Refused("INTEGRATION_FAILURE", "Internal server error") from error

    async def _pass_on(self, answer: httpx.Response, asked: Asked, send: Send) -> None:
        try:
            headers = [
                (name.lower(), value)
                for name, value in answer.headers.raw
                if name.decode().lower() not in OF_A_CONNECTION | ADDED_BY_US - {"content-length"}
            ]
            headers.append((b"x-amzn-requestid", asked.id.encode()))
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx.TransportError as error:
            # Without a last chunk, the client sees that something is missing.
            log.warning("%s %s: the service broke off: %r", asked.method, asked.raw_path, error)
            return
        finally:
            await answer.aclose()
        await send({"type": "http.response.body"})


class _Decisions:
    """What authorizers have said of tokens, for as long as they may be believed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def of(self, token: str) -> Mapping[str, Any] | None:
        with self._lock:
            until, decision = self._kept.get(token, (0.0, {}))
        return decision if until > time.monotonic() else None

    def keep(self, token: str, decision: Mapping[str, Any], seconds: int) -> None:
        with self._lock:
            self._kept[token] = (time.monotonic() + seconds, decision)


async def _send_refusal(refusal: RequestRefusal, send: Send) -> None:
    """As the embedded broker does, without reading the body."""
    body = json_bytes(plain_problem_members(refusal.status, refusal.detail))
    headers = [
        (b"content-type", PROBLEM_MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refusal.status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _asked(scope: Message, stage: str) -> Asked:
    """A request, whose path may begin with the stage, as at the gateway's own address, or not, as at a domain."""
    client = scope.get("client") or ("127.0.0.1", 0)
    path = scope["raw_path"].decode("latin-1") or "/"
    return Asked(
        method=scope["method"],
        raw_path=path.removeprefix(f"/{stage}") if path.startswith(f"/{stage}/") else path,
        query=scope["query_string"].decode("latin-1"),
        headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
        body=b"",
        address=client[0],
    )


async def _body(receive: Receive) -> bytes:
    whole = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        # Too much is read to its end nevertheless: its sender listens only then.
        if len(whole) <= MOST_BYTES:
            whole += message.get("body", b"")
        more = message.get("more_body", False)
    if len(whole) > MOST_BYTES:
        raise Refused("REQUEST_TOO_LARGE", "Request Too Long")
    return bytes(whole)


async def _left(receive: Receive, told: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    told()


def _as_told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _response_headers(answer: Mapping[str, Any]) -> Iterable[tuple[bytes, bytes]]:
    several = {name.lower(): values for name, values in (answer.get("multiValueHeaders") or {}).items()}
    single = {name.lower(): [value] for name, value in (answer.get("headers") or {}).items()}
    for name, values in {**single, **several}.items():
        for value in values:
            if name not in OF_A_CONNECTION | ADDED_BY_US:
                yield name.encode("latin-1"), str(value).encode("latin-1", "replace")


def _raw(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
