"""moto's DynamoDB, S3, CloudFormation and others on a local port: `python -m infra.laptop.moto_service 4566`.

With a second argument, a file of roles, it enforces their permissions. It handles one request at a time, since moto is
not thread-safe and requests have to be atomic.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import uvicorn
from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber

from infra.laptop.asgi import Message, Receive, Send, read_body
from infra.laptop.moto_gaps import patch_moto
from infra.laptop.roles import Request, Roles, keys_to_delete, list_permission_for_missing, required_permissions

Answer = tuple[int, Mapping[str, Any], str | bytes]

S3_ACCESS_DENIED = "<Error><Code>AccessDenied</Code><Message>{}</Message></Error>"


class Services:
    def __init__(self, roles: Roles | None) -> None:
        self._stubber = BotocoreStubber()
        self._roles = roles

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        status, headers, body = self._answer(scope, await read_body(receive))
        content = body.encode() if isinstance(body, str) else bytes(body)
        await send({"type": "http.response.start", "status": status, "headers": _encode_headers(headers, len(content))})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})

    def _answer(self, scope: Message, body: bytes) -> Answer:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = Request(method=scope["method"], url="", headers=headers, body=body)
        if request.scope is None:
            return 200, {}, "OK"
        role, region, service = request.scope
        query = scope["query_string"].decode("latin-1")
        url = f"https://{service}.{region}.amazonaws.com{scope['raw_path'].decode('latin-1')}?{query}".rstrip("?")
        return self._answer_if_allowed(role, service, replace(request, url=url))

    def _answer_if_allowed(self, role: str, service: str, request: Request) -> Answer:
        if self._roles is None:
            return self._process(service, request)
        refusal = self._roles.refusal(role, required_permissions(request))
        if refusal and service == "s3" and (keys := keys_to_delete(request)):
            return _deny_deletions(keys, refusal)
        answer = _denied_answer(service, refusal) if refusal else self._process(service, request)
        if answer[0] == 404 and service == "s3" and (listing := list_permission_for_missing(request)):
            refusal = self._roles.refusal(role, [listing])
            return _denied_answer(service, refusal) if refusal else answer
        return answer

    def _process(self, service: str, request: Request) -> Answer:
        headers = HTTPHeaders()
        for name, value in request.headers.items():
            headers[name] = value
        prepared = AWSPreparedRequest(request.method, request.url, headers, request.body, False)
        return self._stubber.process_request(prepared) or (404, {}, f"{service} is not here")


def _denied_answer(service: str, why: str) -> Answer:
    print("Denied:", why, flush=True)  # noqa: T201  # it is this program's log
    if service == "s3":
        return 403, {"content-type": "application/xml"}, S3_ACCESS_DENIED.format(escape(why))
    body = {"__type": "com.amazon.coral.service#AccessDeniedException", "Message": why, "message": why}
    return 400, {"content-type": "application/x-amz-json-1.0"}, json.dumps(body)


def _deny_deletions(keys: Sequence[str], why: str) -> Answer:
    """Refuse to delete several objects. S3 reports the outcome of each."""
    print("Denied:", why, flush=True)  # noqa: T201  # it is this program's log
    errors = "".join(
        f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code><Message>{escape(why)}</Message></Error>"
        for key in keys
    )
    return 200, {"content-type": "application/xml"}, f"<DeleteResult>{errors}</DeleteResult>"


def _encode_headers(headers: Mapping[str, Any], length: int) -> list[tuple[bytes, bytes]]:
    lowercase = {name.lower(): str(value) for name, value in headers.items()}
    lowercase.setdefault("content-length", str(length))
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lowercase.items()]


def main(port: int, *roles: str) -> None:
    services = Services(Roles(Path(roles[0])) if roles else None)
    # Functions of other packages exist and answer, but run nothing.
    with mock_aws(config={"lambda": {"use_docker": False}}), patch_moto():
        uvicorn.run(services, port=port, lifespan="off", log_config=None, timeout_keep_alive=3600)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
