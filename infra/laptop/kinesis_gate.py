"""In front of a local Kinesis: roles may do what they may, and shards take and give what they do on AWS.

`python -m infra.laptop.kinesis_gate 4567 http://127.0.0.1:4568 roles.json limits`
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import uvicorn

from infra.laptop.limits import Ranges, Shard, size_of
from infra.laptop.roles import Permission, Request, Roles, needed
from infra.laptop.templates import ACCOUNT, REGION

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Place = tuple[str, str]

ITERATOR_SECONDS = 300
THROTTLED = "ProvisionedThroughputExceededException"
OF_A_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date"})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Refused(Exception):
    """Raised for a request that is answered with this error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.answer = Answer(
            400,
            {"content-type": "application/x-amz-json-1.1"},
            json.dumps({"__type": code, "message": message}).encode(),
        )


class Gate:
    """An ASGI application, on one event loop: between two awaits nothing else happens."""

    def __init__(
        self, upstream: str, roles: Roles, *, limits: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._upstream = httpx.AsyncClient(
            base_url=upstream, timeout=60, limits=httpx.Limits(max_connections=None), trust_env=False
        )
        self._roles = roles
        self._limits = limits
        self._clock = clock
        self._shards: dict[Place, Shard] = defaultdict(Shard)
        self._ranges: dict[str, Ranges] = {}
        self._iterators: OrderedDict[str, tuple[Place, float]] = OrderedDict()

    async def __call__(self, scope: Message, receive: Receive, send: Any) -> None:
        request = Request(
            method=scope["method"],
            url=scope["path"],
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            body=await _body(receive),
        )
        try:
            if _operation(request) == "SubscribeToShard":
                await self._pushed(request, receive, send)
                return
            answer = await self._answer(request)
        except Refused as refused:
            answer = refused.answer
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        headers.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, request: Request) -> Answer:
        if request.scope is None:
            return await self._passed(request)
        place = self._place(request)
        self._check(request, place)
        match _operation(request):
            case "PutRecords" | "PutRecord" if self._limits:
                return await self._put(request)
            case "GetRecords":
                return await self._read(request, place)
            case "GetShardIterator":
                return await self._iterator(request)
            case "SplitShard" | "MergeShards" | "UpdateShardCount" | "CreateStream" | "DeleteStream":
                self._ranges.clear()
        return await self._passed(request)

    # Who may do it

    def _place(self, request: Request) -> Place | None:
        """Where an iterator leads to, which only this gate and the service behind it know."""
        iterator = request.content.get("ShardIterator")
        if iterator is None:
            return None
        place, since = self._iterators.get(iterator, (None, 0.0))
        if place is None or self._clock() - since > ITERATOR_SECONDS:
            raise Refused("ExpiredIteratorException", "Iterator expired. The iterator was created more than 5 min ago.")
        return place

    def _check(self, request: Request, place: Place | None) -> None:
        assert request.scope
        wanted = list(needed(request))
        if place is not None:
            wanted = [Permission(each.action, _stream_arn(place[0])) for each in wanted]
        refusal = self._roles.refusal(request.scope[0], wanted)
        if refusal:
            print("Denied:", refusal, flush=True)  # noqa: T201  # it is this program's log
            raise Refused("AccessDeniedException", refusal)

    # What shards take and give

    async def _put(self, request: Request) -> Answer:
        """Some records of a call may be taken and others not, as it is with Kinesis."""
        stream = _stream(request)
        ranges = await self._ranges_of(stream, request)
        single = _operation(request) == "PutRecord"
        records = [request.content] if single else request.content.get("Records", [])
        shards = [ranges.shard_of(each) for each in records]
        now = self._clock()
        taken = [
            self._shards[stream, shard].takes(size_of(each), now) for each, shard in zip(records, shards, strict=True)
        ]
        refused = {at: _too_much(stream, shards[at]) for at, is_taken in enumerate(taken) if not is_taken}
        if not refused:
            return self._noticed(stream, set(shards), await self._passed(request))
        if single:
            raise refused[0]
        answers: list[Any] = []
        if any(taken):
            some = {
                **request.content,
                "Records": [each for each, is_taken in zip(records, taken, strict=True) if is_taken],
            }
            answer = await self._passed(replace(request, body=json.dumps(some).encode()))
            if answer.status != 200:
                return answer
            answers = json.loads(answer.body)["Records"]
        coming = iter(answers)
        whole = [
            {"ErrorCode": THROTTLED, "ErrorMessage": json.loads(refused[at].answer.body)["message"]}
            if at in refused
            else next(coming)
            for at in range(len(records))
        ]
        failed = sum(bool(each.get("ErrorCode")) for each in whole)
        body = json.dumps({"FailedRecordCount": failed, "Records": whole}).encode()
        return Answer(200, {"content-type": "application/x-amz-json-1.1"}, body)

    async def _read(self, request: Request, place: Place | None) -> Answer:
        assert place
        shard = self._shards[place]
        if self._limits and not shard.may_be_read(self._clock()):
            raise _too_much(*place)
        answer = await self._passed(request)
        if answer.status == 200:
            shard.was_read(len(answer.body) * 3 // 4)
            self._remember(json.loads(answer.body).get("NextShardIterator"), place)
        return answer

    async def _iterator(self, request: Request) -> Answer:
        place = _stream(request), request.content["ShardId"]
        if self._limits and not self._shards[place].gives_an_iterator(self._clock()):
            raise _too_much(*place)
        answer = await self._passed(request)
        if answer.status == 200:
            self._remember(json.loads(answer.body)["ShardIterator"], place)
        return answer

    async def _pushed(self, request: Request, receive: Receive, send: Any) -> None:
        """Every byte as soon as it comes. What is pushed is not counted: a consumer has two megabytes for itself."""
        self._check(request, None)
        passing = anyio.CancelScope()
        leaving = asyncio.create_task(_left(receive, passing.cancel))
        try:
            with passing:
                async with self._upstream.stream(
                    request.method, request.url, headers=_forwarded(request.headers), content=request.body, timeout=None
                ) as answer:
                    headers = [(name.encode(), value.encode()) for name, value in _forwarded(answer.headers).items()]
                    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
                    async for chunk in answer.aiter_raw():
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
            await asyncio.wait({leaving})

    def _remember(self, iterator: str | None, place: Place) -> None:
        now = self._clock()
        if iterator:
            self._iterators[iterator] = place, now
        while self._iterators and now - next(iter(self._iterators.values()))[1] > ITERATOR_SECONDS:
            self._iterators.popitem(last=False)

    async def _ranges_of(self, stream: str, request: Request) -> Ranges:
        known = self._ranges.get(stream)
        if known is None:
            headers = {**request.headers, "x-amz-target": "Kinesis_20131202.ListShards"}
            body = json.dumps({"StreamName": stream}).encode()
            answer = await self._passed(replace(request, headers=headers, body=body))
            listed = json.loads(answer.body).get("Shards", []) if answer.status == 200 else []
            known = self._ranges[stream] = Ranges.of(listed)
        return known

    def _noticed(self, stream: str, expected: set[str], answer: Answer) -> Answer:
        """Shards split and merge a moment after it was asked for; records tell where they came to."""
        content = json.loads(answer.body) if answer.status == 200 else {}
        if any(each.get("ShardId") not in expected for each in content.get("Records", [content])):
            self._ranges.pop(stream, None)
        return answer

    async def _passed(self, request: Request) -> Answer:
        headers = _forwarded(request.headers)
        answer = await self._upstream.request(request.method, request.url, headers=headers, content=request.body)
        told = _forwarded(answer.headers)
        told.pop("content-encoding", None)  # it is unpacked
        return Answer(answer.status_code, told, answer.content)


def _forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in OF_A_CONNECTION}


async def _left(receive: Receive, told: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    told()


def _operation(request: Request) -> str:
    return request.headers.get("x-amz-target", "").rpartition(".")[2]


def _stream(request: Request) -> str:
    content = request.content
    return str(content.get("StreamName") or content.get("StreamARN", "").rpartition("/")[2])


def _stream_arn(stream: str) -> str:
    return f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{stream}"


def _too_much(stream: str, shard: str) -> Refused:
    return Refused(THROTTLED, f"Rate exceeded for shard {shard} in stream {stream} under account {ACCOUNT}.")


async def _body(receive: Receive) -> bytes:
    whole = bytearray()
    more = True
    while more:
        message = await receive()
        whole += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(whole)


def main(port: int, upstream: str, roles: str, *limits: str) -> None:
    gate = Gate(upstream, Roles(Path(roles)), limits=bool(limits))
    uvicorn.run(gate, port=port, lifespan="off", log_config=None, timeout_keep_alive=3600)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
