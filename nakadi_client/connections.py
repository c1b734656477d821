"""How to reach the broker: its URL, tokens, pools, proxies and TLS; and requests that end in a value."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec

from nakadi_client.answers import Answer, answer_of
from nakadi_client.errors import NoAnswer
from nakadi_client.tokens import Fixed, Token, TokenSource, token_source
from nakadi_client.version import __version__

Compression = Literal["gzip", "zstd"]

# A publication waits up to 40 s for a switch of timelines, and up to 35 s for the write.
_SECONDS = 90.0
_CONNECT_SECONDS = 10.0
# The broker sends a keep-alive every 30 s at the latest.
STREAM_SECONDS = 75.0
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.ProxyError)


class Connection:
    """How to reach a broker. Producers and consumers accept it in place of a URL; each has its own pool.

        broker = Connection("https://events.example.org", token=TokenFile(path), proxy="http://proxy:3128")

    token     A string, a function, or a source of `nakadi_client.tokens`.
    verify    False, or an `ssl.SSLContext` with the authorities to trust and a certificate of the client's own.
    proxy     The URL of a proxy. Without it, the environment decides (`HTTPS_PROXY`, `NO_PROXY`).
    timeout   Seconds that an answer may take. Streams have another limit: a keep-alive is due every 30 s.
    headers   More headers for each request.
    transport, async_transport
              For tests and for pools of your own: an `httpx.BaseTransport`, an `httpx.AsyncBaseTransport`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token = None,
        verify: bool | ssl.SSLContext = True,
        proxy: str | None = None,
        timeout: float = _SECONDS,
        headers: Mapping[str, str] | None = None,
        max_connections: int = 20,
        transport: httpx.BaseTransport | None = None,
        async_transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        parsed = httpx.URL(url)
        self._is_plain = parsed.scheme == "http"
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("A broker's URL begins with https:// or http://, and has a host.")
        self.url: str = url.rstrip("/")
        self.tokens: TokenSource = token_source(token)
        self._headers = {"User-Agent": f"nakadi-client/{__version__}", "Accept-Encoding": "identity", **(headers or {})}
        self._verify = verify
        self._options: dict[str, Any] = {
            "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            "limits": httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
            **({"proxy": proxy} if proxy else {}),
        }
        self._transport = transport
        self._async_transport = async_transport

    @property
    def shown_url(self) -> str:
        """The URL for messages, without the password that it may have."""
        parsed = httpx.URL(self.url)
        return str(parsed.copy_with(userinfo=b"")) if parsed.userinfo else self.url

    def __repr__(self) -> str:
        return f"Connection({self.shown_url!r})"

    def client(self) -> httpx.Client:
        """Create a pool of connections."""
        return httpx.Client(transport=self._transport, **self._client_options())

    def async_client(self) -> httpx.AsyncClient:
        """Create a pool of connections for asyncio."""
        return httpx.AsyncClient(transport=self._async_transport, **self._client_options())

    def _client_options(self) -> Mapping[str, Any]:
        # Reading the authorities to trust takes longer than a request, and only TLS needs them.
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if self._is_plain else self._verify
        return {"headers": self._headers, "verify": verify, **self._options}


def connection_of(broker: str | Connection, token: Token) -> Connection:
    """Return the connection for a URL or a connection, and an optional token."""
    if isinstance(broker, Connection):
        if token is not None:
            raise ValueError("Give the token to the Connection.")
        return broker
    return Connection(broker, token=token)


class Request(msgspec.Struct, frozen=True):
    """A request. `path` begins with a slash."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = {}
    params: Mapping[str, Any] = {}


def path(*segments: str) -> str:
    """Insert names, which may contain any characters, into a path."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def json_request(method: str, where: str, body: object, headers: Mapping[str, str] | None = None) -> Request:
    """Create a request with a JSON body."""
    content = msgspec.json.encode(body)
    return Request(method, where, content, {"Content-Type": "application/json", **(headers or {})})


class Api:
    """Sends requests over one pool of connections. It is safe for threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client()
        self._closed = False

    def send(self, request: Request) -> Answer | NoAnswer:
        """Send a request. If its token is refused, it is sent once more with another token."""
        try:
            answer = self._send(request)
            if answer.status == 401:
                self._connection.tokens.refuse()
                answer = self._send(request)
        except Exception as error:  # noqa: BLE001  # an application's source of tokens may raise anything
            return no_answer(self._connection, error)
        return answer

    @contextmanager
    def stream(self, request: Request, timeout: float = STREAM_SECONDS) -> Iterator[httpx.Response | Answer]:
        """Open a stream. If the broker refuses, return its `Answer`. Raises `httpx.HTTPError` and `NakadiError`."""
        for attempt in (1, 2):
            arguments = _arguments(self._connection, request, self._connection.tokens.get())
            arguments["timeout"] = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS))
            with self._client.stream(**arguments) as response, self._closing_late(response):
                if response.status_code == 200:
                    yield response
                    return
                answer = answer_of(response.status_code, response.headers, response.read())
            if answer.status != 401 or attempt == 2:
                yield answer
                return
            self._connection.tokens.refuse()

    def close(self) -> None:
        """Close all connections. Requests of other threads may still be running: theirs are closed when they end."""
        self._closed = True
        self._client.close()

    def _send(self, request: Request) -> Answer:
        response = self._client.request(**_arguments(self._connection, request, self._connection.tokens.get()))
        with self._closing_late(response):
            return answer_of(response.status_code, response.headers, response.content)

    @contextmanager
    def _closing_late(self, response: httpx.Response) -> Iterator[None]:
        """Close the connection of a response if all have been closed meanwhile. A pool that is closed while it makes a
        connection forgets this connection.
        """
        try:
            yield
        finally:
            if self._closed:
                response.extensions["network_stream"].close()


class AsyncApi:
    """Like `Api`, for asyncio."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.async_client()

    async def send(self, request: Request) -> Answer | NoAnswer:
        try:
            answer = await self._send(request)
            if answer.status == 401:
                self._connection.tokens.refuse()
                answer = await self._send(request)
        except Exception as error:  # noqa: BLE001  # an application's source of tokens may raise anything
            return no_answer(self._connection, error)
        return answer

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        timeout: float = STREAM_SECONDS,
    ) -> AsyncIterator[httpx.Response | Answer]:
        for attempt in (1, 2):
            arguments = _arguments(self._connection, request, await self._token())
            arguments["timeout"] = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS))
            async with self._client.stream(**arguments) as response:
                if response.status_code == 200:
                    yield response
                    return
                answer = answer_of(response.status_code, response.headers, await response.aread())
            if answer.status != 401 or attempt == 2:
                yield answer
                return
            self._connection.tokens.refuse()

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, request: Request) -> Answer:
        response = await self._client.request(**_arguments(self._connection, request, await self._token()))
        return answer_of(response.status_code, response.headers, response.content)

    async def _token(self) -> str | None:
        tokens = self._connection.tokens
        # Sources other than a string may read a file or ask an identity provider.
        return tokens.get() if isinstance(tokens, Fixed) else await asyncio.to_thread(tokens.get)


def no_answer(connection: Connection, error: Exception) -> NoAnswer:
    """Turn the error that prevented an answer into a value. The error's own text contains no headers."""
    sent = not isinstance(error, _NOT_SENT)
    cause = f"{type(error).__name__}: {error}"
    if not sent:
        return NoAnswer(f"{connection.shown_url} cannot be reached: {cause}", sent=False)
    if isinstance(error, httpx.TimeoutException):
        return NoAnswer(f"{connection.shown_url} did not answer in time.")
    return NoAnswer(f"{connection.shown_url} gave no answer: {cause}")


def compressor(compression: Compression | None) -> Callable[[bytes], bytes] | None:
    """Return the function that compresses bodies. Python has zstd from version 3.14 on; for earlier versions, the
    package `zstandard` provides it.
    """
    if compression is None:
        return None
    if compression == "gzip":
        return lambda body: gzip.compress(body, 5, mtime=0)
    for module in ("compression.zstd", "zstandard"):
        try:
            compress: Callable[[bytes], bytes] = importlib.import_module(module).compress
        except ImportError:
            continue
        return compress
    raise ValueError("zstd needs Python 3.14 or `pip install 'nakadi-client[zstd]'`.")


def _arguments(connection: Connection, request: Request, token: str | None) -> dict[str, Any]:
    headers = dict(request.headers)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return {
        "method": request.method,
        "url": connection.url + request.path,
        "content": request.content,
        "headers": headers,
        "params": dict(request.params) or None,
    }
