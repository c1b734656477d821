"""What the ASGI applications of this folder share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def read_body(receive: Receive) -> bytes:
    whole = bytearray()
    more = True
    while more:
        message = await receive()
        whole += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(whole)


async def wait_for_disconnect(receive: Receive, notify: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    notify()
