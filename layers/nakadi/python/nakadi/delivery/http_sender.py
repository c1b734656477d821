"""Sends deliveries over HTTP, with the client of aiohttp: docs/decisions/0022-sinks-are-called-with-aiohttp.md.

A sink may be anybody's server, so it gets nothing but the request: no redirects, no cookies, no proxies of this
process. The connection goes to the checked address: the sender checks the address when it opens the socket, after it
has resolved the name, so no second look-up can return another address. The sender reads only the beginning of an
answer, and an attempt ends in time, whatever the sink does.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import aiohttp

from nakadi.delivery.addresses import AddressRules
from nakadi.delivery.answers import MAX_ANSWER_CHARACTERS, Answer, parse_retry_after
from nakadi.delivery.bodies import message_of
from nakadi.delivery.senders import Attempt
from nakadi.delivery.signing import signature_headers

MAX_ANSWER_BYTES = 2000
# How long the sender waits for the rest of an answer after its status.
MAX_ANSWER_SECONDS = 2.0
MAX_CONNECT_SECONDS = 10.0
# How long an unused connection stays open: long enough that a sink with occasional deliveries keeps it.
KEEP_ALIVE_SECONDS = 30.0

USER_AGENT = "nakadi"


class AddressRefused(OSError):
    """Raised instead of opening a connection to an address that deliveries may not go to."""


class HttpSender:
    """Use and close it on one event loop."""

    def __init__(
        self, rules: AddressRules, now: Callable[[], datetime], ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._rules = rules
        self._now = now
        self._ssl_context = ssl_context
        self._opened: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def deliver(self, attempt: Attempt) -> Answer:
        """Post a batch, signed."""
        message, secrets = message_of(attempt), attempt.secrets
        headers = {
            **secrets.headers,
            "content-type": message.content_type,
            **signature_headers(attempt.message_id, message.body, secrets.signing, attempt.now),
        }
        return await self.send(attempt.sink.target, message.body, headers, attempt.timeout_seconds)

    async def send(self, url: str, body: bytes, headers: Mapping[str, str], timeout_seconds: float) -> Answer:
        """Send a body, and return the result. Raises nothing."""
        session = self._opened = self._opened or self._open_session()
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=min(timeout_seconds, MAX_CONNECT_SECONDS))
        try:
            async with session.post(
                url, data=body, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                return await self._read_answer(response)
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            return Answer(None, _truncate(f"It cannot be reached: {_cause_of(error)}"), was_sent=False)
        except TimeoutError as error:
            was_sent = not isinstance(error, aiohttp.ConnectionTimeoutError)
            return Answer(None, f"It did not answer within {timeout_seconds:g} s", was_sent=was_sent)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, _truncate(f"No answer that can be read: {error or type(error).__name__}"))

    def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEEP_ALIVE_SECONDS,
                # The name is resolved for each connection: after a service moves to another address, deliveries soon go
                # there.
                use_dns_cache=False,
                ssl=self._ssl_context or True,
                socket_factory=self._open_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("Accept", "Accept-Encoding"),
            headers={"user-agent": USER_AGENT},
        )

    async def _read_answer(self, response: aiohttp.ClientResponse) -> Answer:
        """Read an answer. The status is used even if the rest is broken or does not arrive."""
        retry_after = parse_retry_after(response.headers.get("retry-after"), self._now())
        if response.content.at_eof():
            # Most answers have nothing after the head.
            return Answer(response.status, "", retry_after)
        beginning = b""
        try:
            async with asyncio.timeout(MAX_ANSWER_SECONDS):
                # A short answer is read to its end: otherwise the connection could not be used again.
                while len(beginning) < MAX_ANSWER_BYTES and (part := await response.content.read(MAX_ANSWER_BYTES)):
                    beginning += part
        except (aiohttp.ClientError, OSError, ValueError):
            response.close()
        return Answer(response.status, _truncate(beginning.decode(errors="replace")), retry_after)

    def _open_socket(self, address: Any) -> socket.socket:
        """A socket that will connect to this address of the name."""
        family, kind, protocol, _, target = address
        if not self._rules.allows(target[0]):
            raise AddressRefused(f"deliveries may not go to {target[0]}, see NAKADI_SINK_NETWORKS")
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        return opened


def _cause_of(error: aiohttp.ClientConnectorError | aiohttp.InvalidURL) -> str:
    found = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return getattr(found, "strerror", None) or str(found) or type(found).__name__


def _truncate(text: str) -> str:
    return text[:MAX_ANSWER_CHARACTERS]
