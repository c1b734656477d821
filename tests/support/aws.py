"""AWS as far as the tests need it: moto in this process, with parts of DynamoDB that moto lacks, and faults on demand.
No request leaves the process: moto answers it at the point where it would be sent.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError, ConnectTimeoutError, ReadTimeoutError
from botocore.session import Session
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber, MockRawResponse

from infra.laptop.moto_gaps import patch_moto
from nakadi.engines.dynamodb.tables import TABLES

REGION = "eu-central-1"

Effect = Callable[[], AWSResponse | None]
Fault = Callable[[AWSPreparedRequest, Effect], AWSResponse | None]


class EmulatedAws:
    """Counts calls. `goes_wrong` gives each of the next calls of an operation one of these faults."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._faults: dict[str, deque[Fault]] = {}
        self._one_at_a_time = threading.RLock()

    def goes_wrong(self, operation: str, *faults: Fault) -> None:
        self._faults.setdefault(operation, deque()).extend(faults)

    def goes_right(self) -> None:
        """Forget the remaining faults."""
        self._faults.clear()

    def awaits_fault(self, operation: str) -> bool:
        """Whether a later call of the operation will meet a fault."""
        return bool(self._faults.get(operation))

    def create_tables(self, prefix: str) -> None:
        for table in TABLES:
            _tables_client().create_table(**table.create_request(prefix))

    def answer(self, request: AWSPreparedRequest, effect: Effect) -> AWSResponse | None:
        """Carry out one request at a time: each is atomic in the real service, but moto leaves that to its callers."""
        operation = _operation(request)
        with self._one_at_a_time:
            self.calls[operation] += 1
            waiting = self._faults.get(operation)
            return waiting.popleft()(request, effect) if waiting else effect()


@contextmanager
def aws_with_tables() -> Iterator[EmulatedAws]:
    """An emulated AWS with the tables of a deployment that is called `test`."""
    with aws() as emulated:
        emulated.create_tables("test")
        yield emulated


@contextmanager
def aws() -> Iterator[EmulatedAws]:
    emulated = EmulatedAws()
    stubbed = BotocoreStubber.__call__

    def answered(stubber: BotocoreStubber, event_name: str, request: AWSPreparedRequest, **more: Any) -> Any:
        if urlsplit(request.url).hostname == "127.0.0.1":
            return None  # moto does not answer for services that listen on this machine
        return emulated.answer(request, lambda: stubbed(stubber, event_name, request, **more))

    with (
        mock_aws(),
        patch.object(BotocoreStubber, "__call__", answered),
        patch("nakadi.engines.dynamodb.table_address.new_session", _session),
        patch_moto(),
    ):
        yield emulated


@cache
def _session() -> Session:
    """The session that all tests share, because each new one reads long descriptions of every service."""
    return Session()


@cache
def _tables_client() -> Any:
    """The client of DynamoDB that all tests share, because creating one takes as long as creating the tables; it works
    with every emulated AWS.
    """
    return _session().create_client("dynamodb", REGION)


# Faults


def refusal_fault(code: str) -> Fault:
    """A fault: the service answers with this error, and has done nothing."""
    return lambda request, _: _error(request, 400, {"__type": f"com.amazonaws.dynamodb#{code}"})


def cancellation_fault(code: str) -> Fault:
    """A fault: the service cancels a transaction because of its last change, or refuses a single change."""

    def fault(request: AWSPreparedRequest, effect: Effect) -> AWSResponse | None:
        changes = json.loads(request.body or "{}").get("TransactItems")
        if changes is None:
            return refusal_fault(f"{code}Exception")(request, effect)
        reasons = [{"Code": "None"}] * (len(changes) - 1) + [{"Code": code}]
        body = {"__type": "com.amazonaws.dynamodb#TransactionCanceledException", "CancellationReasons": reasons}
        return _error(request, 400, body)

    return fault


def error_before_effect(request: AWSPreparedRequest, _: Effect) -> AWSResponse:
    return _error(request, 500, {"__type": "com.amazonaws.dynamodb#InternalServerError"})


def error_after_effect(request: AWSPreparedRequest, effect: Effect) -> AWSResponse:
    effect()
    return error_before_effect(request, effect)


def unreadable_answer_after_effect(request: AWSPreparedRequest, effect: Effect) -> AWSResponse:
    """A fault: the request has its effect, but a proxy answers in place of the service."""
    effect()
    page: Any = MockRawResponse("<html>Welcome</html>")
    return AWSResponse(request.url, 200, {"content-type": "text/html"}, page)


def small_page_fault(limit: int) -> Fault:
    """A fault: the service answers a query with at most this number of items, and says where the next page begins."""

    def answered(request: AWSPreparedRequest, effect: Effect) -> AWSResponse | None:
        request.body = json.dumps({**json.loads(request.body), "Limit": limit}).encode()
        return effect()

    return answered


def no_connection(request: AWSPreparedRequest, _: Effect) -> AWSResponse:
    raise ConnectTimeoutError(endpoint_url=request.url)


def timeout_before_effect(request: AWSPreparedRequest, _: Effect) -> AWSResponse:
    raise ReadTimeoutError(endpoint_url=request.url)


def timeout_after_effect(request: AWSPreparedRequest, effect: Effect) -> AWSResponse:
    effect()
    raise ReadTimeoutError(endpoint_url=request.url)


def truncated_answer_after_effect(request: AWSPreparedRequest, effect: Effect) -> AWSResponse:
    effect()
    raise ConnectionClosedError(endpoint_url=request.url)


def timeout_fault_with(meanwhile: Callable[[], None]) -> Fault:
    """A fault: the request has its effect, `meanwhile` does the work of another process, and no answer comes."""

    def fault(request: AWSPreparedRequest, effect: Effect) -> AWSResponse:
        effect()
        meanwhile()
        raise ReadTimeoutError(endpoint_url=request.url)

    return fault


PASSING_FAULTS = {
    "throttled": refusal_fault("ThrottlingException"),
    "no capacity": refusal_fault("ProvisionedThroughputExceededException"),
    "in a conflict": refusal_fault("TransactionConflictException"),
    "cancelled by a conflict": cancellation_fault("TransactionConflict"),
    "broken before": error_before_effect,
    "broken after": error_after_effect,
    "no answer before": timeout_before_effect,
    "no answer after": timeout_after_effect,
    "cut off after": truncated_answer_after_effect,
    "no connection": no_connection,
}
"""Faults of DynamoDB after which another attempt may succeed, by their names in the ids of tests."""


def _error(request: AWSPreparedRequest, status: int, body: Mapping[str, Any]) -> AWSResponse:
    raw: Any = MockRawResponse(json.dumps(body))
    return AWSResponse(request.url, status, {"content-type": "application/x-amz-json-1.0"}, raw)


def _operation(request: AWSPreparedRequest) -> str:
    target = request.headers.get("X-Amz-Target", "")
    return (target.decode() if isinstance(target, bytes) else target).rpartition(".")[2]
