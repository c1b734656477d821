"""Random faults, the same ones for the same seed, and a clock that moves only when a caller waits or looks at it."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError
from moto.core.botocore_stubber import MockRawResponse

from tests.support import aws
from tests.support.aws import Effect, EmulatedAws, Fault

LITTLE = 0.001
"""Seconds that pass whenever somebody looks at the clock, because nothing takes no time at all."""

THROTTLED, EXPIRED = "throttled", "expired credentials"

BEFORE_OR_AFTER: dict[str, Fault] = {
    "500 before": aws.error_before_effect,
    "500 after": aws.error_after_effect,
    "timeout before": aws.timeout_before_effect,
    "timeout after": aws.timeout_after_effect,
    "cut off after": aws.truncated_answer_after_effect,
    "no connection": aws.no_connection,
}
KINESIS: dict[str, Fault] = {
    THROTTLED: aws.refusal_fault("ProvisionedThroughputExceededException"),
    EXPIRED: aws.refusal_fault("ExpiredTokenException"),
    **BEFORE_OR_AFTER,
}
READING = {**KINESIS, "expired iterator": aws.refusal_fault("ExpiredIteratorException")}
DYNAMODB = {
    THROTTLED: aws.refusal_fault("ThrottlingException"),
    EXPIRED: aws.refusal_fault("ExpiredTokenException"),
    "conflict": aws.cancellation_fault("TransactionConflict"),
    **BEFORE_OR_AFTER,
}


class ReplacedTime:
    """Replaces all clocks of this thread. Other threads of this process keep their own clocks."""

    def __init__(self) -> None:
        self._began = time.time()
        self._passed = 0.0

    def monotonic(self) -> float:
        self._passed += LITTLE
        return self._passed

    def time(self) -> float:
        return self._began + self._passed

    def sleep(self, seconds: float) -> None:
        self._passed += max(seconds, 0.0)

    @contextmanager
    def replace_clocks(self) -> Iterator[None]:
        with ExitStack() as patches:
            for ours in (self.sleep, self.monotonic, self.time):
                patches.enter_context(
                    patch(f"time.{ours.__name__}", _in_this_thread(ours, getattr(time, ours.__name__)))
                )
            yield


def _in_this_thread(ours: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    here = threading.get_ident()

    def intercept(*values: Any) -> Any:
        return (ours if threading.get_ident() == here else elsewhere)(*values)

    return intercept


class AwsFaults:
    """Chooses a fault for each request, or none. `badness` is the probability of a fault, and `met` counts the
    faults.
    """

    def __init__(self, chance: random.Random, clock: ReplacedTime) -> None:
        self._chance = chance
        self._clock = clock
        self._s3 = _faults_of_s3(clock)
        self.badness = 0.0
        self.met: Counter[tuple[str, str]] = Counter()

    def inject_into(self, emulated: EmulatedAws) -> Any:
        """Let each request to these emulated services get its fault, if one is drawn for it."""
        usual = emulated.answer

        def answer(request: AWSPreparedRequest, effect: Effect) -> AWSResponse | None:
            service, faults = self._possible(request)
            if not faults or self._chance.random() >= self.badness:
                return usual(request, effect)
            name = self._chance.choice(list(faults))
            self.met[service, name] += 1
            return faults[name](request, effect)

        return patch.object(emulated, "answer", answer)

    def refuse_some_records(self, places: Sequence[int]) -> dict[int, str]:
        """Draw which records of a call are refused, and return the reasons by their places."""
        if self._chance.random() >= self.badness:
            return {}
        self.met["Kinesis", "partial failure"] += 1
        codes = ("ProvisionedThroughputExceededException", "InternalFailure")
        return {at: self._chance.choice(codes) for at in places if self._chance.random() < 0.5}

    def _possible(self, request: AWSPreparedRequest) -> tuple[str, dict[str, Fault]]:
        service, _, operation = _target(request).rpartition(".")
        if service.startswith("DynamoDB"):
            return "DynamoDB", DYNAMODB
        if service.startswith("Kinesis"):
            return "Kinesis", READING if operation == "GetRecords" else KINESIS
        return "S3", self._s3


def _target(request: AWSPreparedRequest) -> str:
    target = request.headers.get("X-Amz-Target", "")
    return target.decode() if isinstance(target, bytes) else str(target)


def _faults_of_s3(clock: ReplacedTime) -> dict[str, Fault]:
    def slow(fault: Fault) -> Fault:
        def late(request: AWSPreparedRequest, effect: Effect) -> AWSResponse | None:
            clock.sleep(10)
            return fault(request, effect)

        return late

    def timeout_before(request: AWSPreparedRequest, _: Effect) -> AWSResponse:
        raise ReadTimeoutError(endpoint_url=request.url)

    def timeout_after(request: AWSPreparedRequest, effect: Effect) -> AWSResponse:
        effect()
        raise ReadTimeoutError(endpoint_url=request.url)

    def no_connection(request: AWSPreparedRequest, _: Effect) -> AWSResponse:
        raise ConnectTimeoutError(endpoint_url=request.url)

    return {
        "slow, then there": slow(lambda _, effect: effect()),
        "slow, then a timeout": slow(timeout_before),
        "timeout after": timeout_after,
        "no connection": no_connection,
        THROTTLED: _refusal(503, "SlowDown"),
        "500": _refusal(500, "InternalError"),
        EXPIRED: _refusal(400, "ExpiredToken"),
        "gibberish": _answer(502, "<html>Bad Gateway"),
    }


def _refusal(status: int, code: str) -> Fault:
    return _answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>")


def _answer(status: int, text: str) -> Callable[[AWSPreparedRequest, Effect], AWSResponse]:
    def fault(request: AWSPreparedRequest, _: Effect) -> AWSResponse:
        raw: Any = MockRawResponse(text)
        return AWSResponse(request.url, status, {"content-type": "application/xml"}, raw)

    return fault
