"""A proxy of a local Kinesis that enforces the permissions of roles and the limits of shards.

`python -m infra.laptop.kinesis_gate 4567 http://127.0.0.1:4568 roles.json limits`
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import uvicorn

from infra.laptop.asgi import Message, Receive, read_body, wait_for_disconnect
from infra.laptop.limits import HashKeyRanges, Shard, record_size
from infra.laptop.roles import Permission, Request, Roles, required_permissions
from infra.laptop.templates import ACCOUNT, REGION

ShardKey = tuple[str, str]

ITERATOR_SECONDS = 300
THROTTLED_ERROR = "ProvisionedThroughputExceededException"
HOP_BY_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date"})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class RequestRefused(Exception):
    """Raised for a request that gets this error as its answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.answer = Answer(
            400,
            {"content-type": "application/x-amz-json-1.1"},
            json.dumps({"__type": code, "message": message}).encode(),
        )


class KinesisGate:
    """The proxy, an ASGI application. It runs on one event loop, so no other request interferes between two awaits."""

    def __init__(
        self, upstream: str, roles: Roles, *, limits: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._upstream = httpx.AsyncClient(
            base_url=upstream, timeout=60, limits=httpx.Limits(max_connections=None), trust_env=False
        )
        self._roles = roles
        self._limits = limits
        self._clock = clock
        self._shards: dict[ShardKey, Shard] = defaultdict(Shard)
        self._ranges: dict[str, HashKeyRanges] = {}
        self._iterators: OrderedDict[str, tuple[ShardKey, float]] = OrderedDict()

    async def __call__(self, scope: Message, receive: Receive, send: Any) -> None:
        request = Request(
            method=scope["method"],
            url=scope["path"],
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            body=await read_body(receive),
        )
        try:
            if _operation(request) == "SubscribeToShard":
                await self._forward_push(request, receive, send)
                return
            answer = await self._answer(request)
        except RequestRefused as refused:
            answer = refused.answer
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        headers.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, request: Request) -> Answer:
        if request.scope is None:
            return await self._forward(request)
        shard_key = self._shard_of_iterator(request)
        self._check(request, shard_key)
        match _operation(request):
            case "PutRecords" | "PutRecord" if self._limits:
                return await self._put(request)
            case "GetRecords":
                return await self._read(request, shard_key)
            case "GetShardIterator":
                return await self._iterator(request)
            case "SplitShard" | "MergeShards" | "UpdateShardCount" | "CreateStream" | "DeleteStream":
                self._ranges.clear()
        return await self._forward(request)

    # Permissions

    def _shard_of_iterator(self, request: Request) -> ShardKey | None:
        """The shard of the iterator in a request, which only this gate and the service behind it know; None if the
        request has no iterator. Raises `RequestRefused` if the iterator has expired.
        """
        iterator = request.content.get("ShardIterator")
        if iterator is None:
            return None
        shard_key, since = self._iterators.get(iterator, (None, 0.0))
        if shard_key is None or self._clock() - since > ITERATOR_SECONDS:
            raise RequestRefused(
                "ExpiredIteratorException", "Iterator expired. The iterator was created more than 5 min ago."
            )
        return shard_key

    def _check(self, request: Request, shard_key: ShardKey | None) -> None:
        assert request.scope
        wanted = list(required_permissions(request))
        if shard_key is not None:
            wanted = [Permission(each.action, _stream_arn(shard_key[0])) for each in wanted]
        refusal = self._roles.refusal(request.scope[0], wanted)
        if refusal:
            print("Denied:", refusal, flush=True)  # noqa: T201  # it is this program's log
            raise RequestRefused("AccessDeniedException", refusal)

    # Limits of shards

    async def _put(self, request: Request) -> Answer:
        """Forward the records within the limits. Like Kinesis, accept some records of a call and refuse others."""
        stream = _stream(request)
        ranges = await self._find_ranges(stream, request)
        single = _operation(request) == "PutRecord"
        records = [request.content] if single else request.content.get("Records", [])
        shards = [ranges.find_shard(each) for each in records]
        now = self._clock()
        is_accepted = [
            self._shards[stream, shard].accept(record_size(each), now)
            for each, shard in zip(records, shards, strict=True)
        ]
        refused = {at: _throttle_error(stream, shards[at]) for at, is_taken in enumerate(is_accepted) if not is_taken}
        if not refused:
            return self._forget_stale_ranges(stream, set(shards), await self._forward(request))
        if single:
            raise refused[0]
        answers: list[Any] = []
        if any(is_accepted):
            some = {
                **request.content,
                "Records": [each for each, is_taken in zip(records, is_accepted, strict=True) if is_taken],
            }
            answer = await self._forward(replace(request, body=json.dumps(some).encode()))
            if answer.status != 200:
                return answer
            answers = json.loads(answer.body)["Records"]
        coming = iter(answers)
        whole = [
            {"ErrorCode": THROTTLED_ERROR, "ErrorMessage": json.loads(refused[at].answer.body)["message"]}
            if at in refused
            else next(coming)
            for at in range(len(records))
        ]
        failed = sum(bool(each.get("ErrorCode")) for each in whole)
        body = json.dumps({"FailedRecordCount": failed, "Records": whole}).encode()
        return Answer(200, {"content-type": "application/x-amz-json-1.1"}, body)

    async def _read(self, request: Request, shard_key: ShardKey | None) -> Answer:
        assert shard_key
        shard = self._shards[shard_key]
        if self._limits and not shard.allow_read(self._clock()):
            raise _throttle_error(*shard_key)
        answer = await self._forward(request)
        if answer.status == 200:
            shard.record_read(len(answer.body) * 3 // 4)
            self._remember(json.loads(answer.body).get("NextShardIterator"), shard_key)
        return answer

    async def _iterator(self, request: Request) -> Answer:
        shard_key = _stream(request), request.content["ShardId"]
        if self._limits and not self._shards[shard_key].allow_iterator(self._clock()):
            raise _throttle_error(*shard_key)
        answer = await self._forward(request)
        if answer.status == 200:
            self._remember(json.loads(answer.body)["ShardIterator"], shard_key)
        return answer

    async def _forward_push(self, request: Request, receive: Receive, send: Any) -> None:
        """Forward each byte immediately. Pushed bytes do not count, since a consumer has its own two megabytes."""
        self._check(request, None)
        passing = anyio.CancelScope()
        leaving = asyncio.create_task(wait_for_disconnect(receive, passing.cancel))
        try:
            with passing:
                async with self._upstream.stream(
                    request.method,
                    request.url,
                    headers=_end_to_end_headers(request.headers),
                    content=request.body,
                    timeout=None,
                ) as answer:
                    headers = [
                        (name.encode(), value.encode()) for name, value in _end_to_end_headers(answer.headers).items()
                    ]
                    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
                    async for chunk in answer.aiter_raw():
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
            await asyncio.wait({leaving})

    def _remember(self, iterator: str | None, shard_key: ShardKey) -> None:
        now = self._clock()
        if iterator:
            self._iterators[iterator] = shard_key, now
        while self._iterators and now - next(iter(self._iterators.values()))[1] > ITERATOR_SECONDS:
            self._iterators.popitem(last=False)

    async def _find_ranges(self, stream: str, request: Request) -> HashKeyRanges:
        known = self._ranges.get(stream)
        if known is None:
            headers = {**request.headers, "x-amz-target": "Kinesis_20131202.ListShards"}
            body = json.dumps({"StreamName": stream}).encode()
            answer = await self._forward(replace(request, headers=headers, body=body))
            listed = json.loads(answer.body).get("Shards", []) if answer.status == 200 else []
            known = self._ranges[stream] = HashKeyRanges.of(listed)
        return known

    def _forget_stale_ranges(self, stream: str, expected: set[str], answer: Answer) -> Answer:
        """Forget the known shards of a stream if a record went to another shard than expected, as after a split."""
        content = json.loads(answer.body) if answer.status == 200 else {}
        if any(each.get("ShardId") not in expected for each in content.get("Records", [content])):
            self._ranges.pop(stream, None)
        return answer

    async def _forward(self, request: Request) -> Answer:
        headers = _end_to_end_headers(request.headers)
        answer = await self._upstream.request(request.method, request.url, headers=headers, content=request.body)
        response_headers = _end_to_end_headers(answer.headers)
        response_headers.pop("content-encoding", None)  # httpx has already decompressed the body
        return Answer(answer.status_code, response_headers, answer.content)


def _end_to_end_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in HOP_BY_HOP_HEADERS}


def _operation(request: Request) -> str:
    return request.headers.get("x-amz-target", "").rpartition(".")[2]


def _stream(request: Request) -> str:
    content = request.content
    return str(content.get("StreamName") or content.get("StreamARN", "").rpartition("/")[2])


def _stream_arn(stream: str) -> str:
    return f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{stream}"


def _throttle_error(stream: str, shard: str) -> RequestRefused:
    return RequestRefused(
        THROTTLED_ERROR, f"Rate exceeded for shard {shard} in stream {stream} under account {ACCOUNT}."
    )


def main(port: int, upstream: str, roles: str, *limits: str) -> None:
    gate = KinesisGate(upstream, Roles(Path(roles)), limits=bool(limits))
    uvicorn.run(gate, port=port, lifespan="off", log_config=None, timeout_keep_alive=3600)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
