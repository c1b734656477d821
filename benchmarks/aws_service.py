"""AWS on a local socket, for benchmarks: moto, which counts calls and the units that AWS would charge for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, HeadersDict
from moto.core.models import botocore_stubber

from tests.support.aws import REGION, aws
from tests.support.kinesis import create_stream, session

BUCKET = "archive"
SCOPE = re.compile(r"Credential=[^/]+/[0-9]+/[^/]+/([^/]+)/")
READ_UNIT, WRITE_UNIT = 4096, 1024


class AwsMeter:
    """Counts `calls` by operation; `reads` and `writes` are DynamoDB's capacity units."""

    def __init__(self, url: str, stream: str) -> None:
        self.url = url
        self.stream = stream
        self._lock = Lock()
        self.forget()

    def forget(self) -> None:
        self.calls: Counter[str] = Counter()
        self.reads = 0.0
        self.writes = 0.0

    def count_call(self, service: str, operation: str, asked: bytes, answered: bytes) -> None:
        with self._lock:
            self.calls[operation] += 1
            if service == "dynamodb":
                self.reads += read_units(operation, json.loads(asked), json.loads(answered or b"{}"))
                self.writes += write_units(operation, json.loads(asked))

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which clients use this service."""
        tables = f"dynamodb://live?endpoint={self.url}"
        return {
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "NAKADI_REGISTRY": tables,
            "NAKADI_LOG_INDEX": tables,
            "NAKADI_EVENT_LOG": f"kinesis://{self.stream}?endpoint={self.url}",
            "NAKADI_ARCHIVE": f"s3://{BUCKET}/?endpoint={self.url}",
        }


@contextmanager
def serve_metered_aws() -> Iterator[AwsMeter]:
    class AwsHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers: Any = HeadersDict(dict(self.headers.items()))
            found = SCOPE.search(self.headers.get("Authorization", ""))
            name = found[1] if found else "s3"
            address = f"https://{name}.{REGION}.amazonaws.com{self.path}"
            with moto:
                answer = botocore_stubber.process_request(
                    AWSPreparedRequest(self.command, address, headers, body, False)
                )
            assert answer
            status, told, content = answer
            raw = content if isinstance(content, bytes) else content.encode()
            service.count_call(name, self.headers.get("X-Amz-Target", self.command).rpartition(".")[2], body, raw)
            lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(raw)}"]
            lines += [f"{key}: {value}" for key, value in told.items() if key.lower() != "content-length"]
            # The answer is sent in one piece: otherwise, the client waits for the second piece.
            self.wfile.write("\r\n".join([*lines, "", ""]).encode() + (raw if self.command != "HEAD" else b""))

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815  # their names for it

        def log_message(self, *_: Any) -> None:
            pass

    moto = Lock()
    with aws() as emulated, ThreadingHTTPServer(("127.0.0.1", 0), AwsHandler) as server:
        emulated.create_tables("live")
        stream = create_stream(session().create_client("kinesis", REGION), shards=1)
        constraint = {"LocationConstraint": REGION}
        session().create_client("s3", REGION).create_bucket(Bucket=BUCKET, CreateBucketConfiguration=constraint)
        service = AwsMeter(f"http://127.0.0.1:{server.server_address[1]}", stream)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield service
        finally:
            server.shutdown()


def read_units(operation: str, asked: Mapping[str, Any], answered: Mapping[str, Any]) -> float:
    """The read units of a call. A strongly consistent read counts one unit for each 4 KB, others half; a missing item
    counts like the smallest one.
    """
    match operation:
        case "GetItem":
            return _units(size_of(answered.get("Item", {})), READ_UNIT) * _read_unit_factor(asked)
        case "Query":
            return _units(sum(map(size_of, answered.get("Items", ()))), READ_UNIT) * _read_unit_factor(asked)
        case "BatchGetItem":
            found = [size_of(item) for items in answered.get("Responses", {}).values() for item in items]
            keys = sum(len(table["Keys"]) for table in asked["RequestItems"].values())
            whole = all(table.get("ConsistentRead") for table in asked["RequestItems"].values())
            units = sum(_units(size, READ_UNIT) for size in found) + keys - len(found)
            return units * (1.0 if whole else 0.5)
    return 0.0


def write_units(operation: str, asked: Mapping[str, Any]) -> float:
    """The write units of a call. Writes in a transaction count twice."""
    match operation:
        case "PutItem":
            return _units(size_of(asked["Item"]), WRITE_UNIT)
        case "UpdateItem" | "DeleteItem":
            return 1.0
        case "BatchWriteItem":
            changes = [change for table in asked["RequestItems"].values() for change in table]
            return sum(_units(size_of(each.get("PutRequest", {}).get("Item", {})), WRITE_UNIT) for each in changes)
        case "TransactWriteItems":
            items = [change.get("Item", {}) for each in asked["TransactItems"] for change in each.values()]
            return 2 * sum(_units(size_of(item), WRITE_UNIT) for item in items)
    return 0.0


def size_of(item: Mapping[str, Mapping[str, Any]]) -> int:
    """The approximate size for DynamoDB: names and values, without type names."""
    return sum(len(name) + len(str(value)) for name, typed in item.items() for value in typed.values())


def _units(size: int, unit: int) -> int:
    return max(1, -(-size // unit))


def _read_unit_factor(asked: Mapping[str, Any]) -> float:
    return 1.0 if asked.get("ConsistentRead") else 0.5
