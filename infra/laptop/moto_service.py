"""DynamoDB, S3, CloudFormation and the rest on a port of this machine: `python -m infra.laptop.moto_service 4566`.

With a second argument, the file that tells of the roles, it lets them do what they may and nothing else.
One request after the other: to the real services each is one step, and moto leaves that to its callers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import uvicorn
from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber

from infra.laptop.moto_gaps import gaps_filled
from infra.laptop.roles import Request, Roles, bucket_of_missing, deleted_together, needed

Message = Mapping[str, Any]

Answer = tuple[int, Mapping[str, Any], str | bytes]

DENIED_BY_S3 = "<Error><Code>AccessDenied</Code><Message>{}</Message></Error>"


class Services:
    def __init__(self, roles: Roles | None) -> None:
        self._stubber = BotocoreStubber()
        self._roles = roles

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

    def _answer(self, scope: Message, body: bytes) -> Answer:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = Request(method=scope["method"], url="", headers=headers, body=body)
        if request.scope is None:
            return 200, {}, "OK"
        who, region, service = request.scope
        query = scope["query_string"].decode("latin-1")
        url = f"https://{service}.{region}.amazonaws.com{scope['raw_path'].decode('latin-1')}?{query}".rstrip("?")
        return self._allowed(who, service, replace(request, url=url))

    def _allowed(self, who: str, service: str, request: Request) -> Answer:
        if self._roles is None:
            return self._done(service, request)
        refusal = self._roles.refusal(who, needed(request))
        if refusal and service == "s3" and (keys := deleted_together(request)):
            return _not_deleted(keys, refusal)
        answer = _denied(service, refusal) if refusal else self._done(service, request)
        if answer[0] == 404 and service == "s3" and (listing := bucket_of_missing(request)):
            refusal = self._roles.refusal(who, [listing])
            return _denied(service, refusal) if refusal else answer
        return answer

    def _done(self, service: str, request: Request) -> Answer:
        headers = HTTPHeaders()
        for name, value in request.headers.items():
            headers[name] = value
        prepared = AWSPreparedRequest(request.method, request.url, headers, request.body, False)
        return self._stubber.process_request(prepared) or (404, {}, f"{service} is not here")


def _denied(service: str, why: str) -> Answer:
    print("Denied:", why, flush=True)  # noqa: T201  # it is this program's log
    if service == "s3":
        return 403, {"content-type": "application/xml"}, DENIED_BY_S3.format(escape(why))
    body = {"__type": "com.amazon.coral.service#AccessDeniedException", "Message": why, "message": why}
    return 400, {"content-type": "application/x-amz-json-1.0"}, json.dumps(body)


def _not_deleted(keys: Sequence[str], why: str) -> Answer:
    """Of several objects, S3 says for each whether it is gone."""
    print("Denied:", why, flush=True)  # noqa: T201  # it is this program's log
    errors = "".join(
        f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code><Message>{escape(why)}</Message></Error>"
        for key in keys
    )
    return 200, {"content-type": "application/xml"}, f"<DeleteResult>{errors}</DeleteResult>"


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


def main(port: int, *roles: str) -> None:
    services = Services(Roles(Path(roles[0])) if roles else None)
    with mock_aws(), gaps_filled():
        uvicorn.run(services, port=port, lifespan="off", log_config=None, timeout_keep_alive=3600)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
