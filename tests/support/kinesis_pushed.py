"""Adds enhanced fan-out to an emulation that lacks it: consumers and subscriptions, as the real service has them.

A server on loopback speaks the service's own protocol, with its event streams, for the calls about consumers. It pushes
records that it reads from the emulated stream. So the tests use the same client, and the same code between client and
log, as with the real service.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch
from zlib import crc32

from nakadi.engines.kinesis import opening

PAUSE = 0.005

Message = tuple[str, str, dict[str, Any]]

HEARTBEAT = 0.1


class CallRefused(Exception):
    def __init__(self, code: str, message: str = "no") -> None:
        super().__init__(message)
        self.code = code


class PushingKinesis:
    """Enforces the service's limits: twenty consumers, one subscription of a consumer to a shard, and the seconds
    within which a subscription cannot be replaced. While `silent` is set, connections stay open and carry nothing.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self.consumers: dict[str, dict[str, Any]] = {}
        self._changes_to_subscribe: dict[tuple[str, str], tuple[object, float]] = {}
        self.calls: Counter[str] = Counter()
        self.records = 0
        self.pages = 0
        self.streaming: set[tuple[str, str]] = set()
        self.most = 20
        self.active_at_once = False
        self.activates = True
        self.pushes = True
        self.lasts = 300.0
        self.replaceable_after = 5.0
        self.silent = threading.Event()
        self.closed = threading.Event()

    def answer(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        self.calls[operation] += 1
        with self._lock:
            match operation:
                case "DescribeStreamSummary":
                    return {"StreamDescriptionSummary": {"StreamARN": f"arn:stream/{asked['StreamName']}"}}
                case "RegisterStreamConsumer":
                    return {"Consumer": self._describe_consumer(asked)}
                case "DescribeStreamConsumer":
                    described = {**self._find_consumer(asked), "StreamARN": "arn:stream"}
                    self.consumers[asked["ConsumerARN"]]["ConsumerStatus"] = "ACTIVE" if self.activates else "CREATING"
                    return {
                        "ConsumerDescription": {
                            **described,
                            "ConsumerStatus": self._find_consumer(asked)["ConsumerStatus"],
                        }
                    }
                case "DeregisterStreamConsumer":
                    self._find_consumer(asked)
                    del self.consumers[asked["ConsumerARN"]]
                    return {}
                case "ListStreamConsumers":
                    return {"Consumers": list(self.consumers.values())}
        raise CallRefused("UnknownOperationException", operation)

    def _describe_consumer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if len(self.consumers) >= self.most:
            raise CallRefused("LimitExceededException")
        arn = f"{asked['StreamARN']}/consumer/{asked['ConsumerName']}:1"
        self.consumers[arn] = {
            "ConsumerARN": arn,
            "ConsumerName": asked["ConsumerName"],
            "ConsumerStatus": "ACTIVE" if self.active_at_once else "CREATING",
            "ConsumerCreationTimestamp": time.time(),
        }
        return dict(self.consumers[arn])

    def _find_consumer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["ConsumerARN"] not in self.consumers:
            raise CallRefused("ResourceNotFoundException")
        return self.consumers[asked["ConsumerARN"]]

    def registered_at(self, moment: datetime) -> None:
        """Pretend that all consumers were registered at this moment."""
        with self._lock:
            for each in self.consumers.values():
                each["ConsumerCreationTimestamp"] = moment.timestamp()

    def subscribe_to_shard(self, asked: dict[str, Any]) -> Iterator[Message]:
        """The kind, name and payload of each message; a refusal is raised before the first."""
        self.calls["SubscribeToShard"] += 1
        arn, shard = asked["ConsumerARN"], asked["ShardId"]
        now = time.monotonic()
        me = object()
        with self._lock:
            if self._find_consumer(asked)["ConsumerStatus"] != "ACTIVE" or not self.pushes:
                raise CallRefused("ResourceInUseException")
            _, since = self._changes_to_subscribe.get((arn, shard), (None, float("-inf")))
            if now - since < self.replaceable_after:
                raise CallRefused("ResourceInUseException")
            self._changes_to_subscribe[arn, shard] = (me, now)
        place = asked["StartingPosition"]
        behind = {"StartingSequenceNumber": place["SequenceNumber"]} if "SequenceNumber" in place else {}
        try:
            iterator = self._stream.get_shard_iterator(
                StreamName=_stream_of(arn), ShardId=shard, ShardIteratorType=place["Type"], **behind
            )["ShardIterator"]
        except self._stream.exceptions.ClientError as error:
            raise CallRefused(error.response["Error"]["Code"]) from error
        return self._count_messages(
            (arn, shard), self._messages(me, arn, shard, iterator, place.get("SequenceNumber", "0"))
        )

    def _count_messages(self, what: tuple[str, str], messages: Iterator[Message]) -> Iterator[Message]:
        self.streaming.add(what)
        try:
            yield from messages
        finally:
            self.streaming.discard(what)

    def _messages(self, me: object, arn: str, shard: str, iterator: str, place: str) -> Iterator[Message]:
        began = told = time.monotonic()
        yield "event", "initial-response", {}
        first = True
        while not self.closed.is_set() and time.monotonic() - began < self.lasts:
            if self._changes_to_subscribe[arn, shard][0] is not me:
                return
            if arn not in self.consumers:
                yield "exception", "ResourceNotFoundException", {"message": "The consumer is not there"}
                return
            if self.silent.is_set():
                self.closed.wait(PAUSE)
                continue
            page = self._stream.get_records(ShardIterator=iterator, Limit=1000)
            ended = page.get("NextShardIterator") is None
            if page["Records"] or first or ended or time.monotonic() - told > HEARTBEAT:
                place = page["Records"][-1]["SequenceNumber"] if page["Records"] else place
                self.records += len(page["Records"])
                event = {
                    "Records": [_record(each) for each in page["Records"]],
                    "MillisBehindLatest": page.get("MillisBehindLatest", 0),
                }
                more = {"ChildShards": page.get("ChildShards", [])} if ended else {"ContinuationSequenceNumber": place}
                yield "event", "SubscribeToShardEvent", {**event, **more}
                self.pages += 1
                told, first = time.monotonic(), False
            if ended:
                return
            iterator = page["NextShardIterator"]
            self.closed.wait(PAUSE)


def _stream_of(arn: str) -> str:
    return arn.removeprefix("arn:stream/").partition("/")[0]


def _record(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "SequenceNumber": record["SequenceNumber"],
        "PartitionKey": record["PartitionKey"],
        "ApproximateArrivalTimestamp": record["ApproximateArrivalTimestamp"].timestamp(),
        "Data": base64.b64encode(record["Data"]).decode(),
    }


def frame_message(kind: str, name: str, payload: dict[str, Any]) -> bytes:
    """Encode a message of an event stream."""
    headers = b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for key, value in (
            (":message-type", kind),
            (":event-type" if kind == "event" else ":exception-type", name),
            (":content-type", "application/x-amz-json-1.1"),
        )
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + headers + body
    return message + struct.pack("!I", crc32(message))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kinesis: PushingKinesis

    def do_POST(self) -> None:
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if operation != "SubscribeToShard":
                self._send(200, self.kinesis.answer(operation, asked))
                return
            messages = self.kinesis.subscribe_to_shard(asked)
        except CallRefused as refused:
            self._send(400, {"__type": refused.code, "message": str(refused)})
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.amazon.eventstream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for message in messages:
                self._chunk(frame_message(*message))
            self._chunk(b"")
        except OSError:
            self.close_connection = True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def start_pushing_kinesis(stream: Any) -> Iterator[PushingKinesis]:
    """Inside the block, logs with fan-out in their URL get the records of this client's stream pushed."""
    kinesis = PushingKinesis(stream)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"kinesis": kinesis}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    real = opening.new_kinesis_client

    def client(asked: dict[str, str], read_timeout: float | None = None) -> Any:
        if read_timeout is None:
            return real(asked)
        return real({**asked, "endpoint": f"http://127.0.0.1:{server.server_address[1]}"}, read_timeout)

    try:
        with patch.object(opening, "new_kinesis_client", client):
            yield kinesis
    finally:
        kinesis.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()
