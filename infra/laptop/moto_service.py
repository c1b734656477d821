"""DynamoDB, S3, CloudFormation and the rest on a port of this machine: `python -m infra.laptop.moto_service 4566`.

One request after the other: to the real services each is one step, and moto leaves that to its callers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import uvicorn
from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber

from infra.laptop.moto_gaps import gaps_filled

Message = Mapping[str, Any]

# Whoever signs a request says what it is for: `Credential=key/20261121/eu-central-1/dynamodb/aws4_request`.
SCOPE = re.compile(r"Credential=[^/]+/[0-9]+/([^/]+)/([^/]+)/aws4_request")


class Services:
    def __init__(self) -> None:
        self._stubber = BotocoreStubber()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        status, headers, body = self._answer(scope, await _body(receive))
        content = body.encode() if isinstance(body, str) else bytes(body)
        await send({"type": "http.response.start", "status": status, "headers": _raw(headers, len(content))})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})

    def _answer(self, scope: Message, body: bytes) -> tuple[int, Mapping[str, Any], str | bytes]:
        headers = HTTPHeaders()
        for name, value in scope["headers"]:
            headers[name.decode("latin-1")] = value.decode("latin-1")
        signed = SCOPE.search(headers.get("authorization", ""))
        if signed is None:
            return 200, {}, "OK"
        region, service = signed.groups()
        query = scope["query_string"].decode("latin-1")
        url = f"https://{service}.{region}.amazonaws.com{scope['raw_path'].decode('latin-1')}?{query}".rstrip("?")
        answer = self._stubber.process_request(AWSPreparedRequest(scope["method"], url, headers, body, False))
        return answer or (404, {}, f"{service} is not here")


async def _body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    whole = bytearray()
    more = True
    while more:
        message = await receive()
        whole += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(whole)


def _raw(headers: Mapping[str, Any], length: int) -> list[tuple[bytes, bytes]]:
    told = {name.lower(): str(value) for name, value in headers.items()}
    told.setdefault("content-length", str(length))
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]


def main(port: int) -> None:
    with mock_aws(), gaps_filled():
        uvicorn.run(Services(), port=port, lifespan="off", log_config=None, timeout_keep_alive=3600)


if __name__ == "__main__":
    main(int(sys.argv[1]))
