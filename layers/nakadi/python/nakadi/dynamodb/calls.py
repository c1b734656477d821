"""Calls to DynamoDB: bounded in time, and told apart by what is known when they fail.

botocore would try again by itself, and could not say afterwards whether an attempt before the last one had an effect.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, HTTPClientError
from botocore.parsers import ResponseParserError
from pynamodb.exceptions import CancellationReason, PynamoDBException, TransactWriteError

from nakadi.model.outcomes import Unavailable

# With four attempts a call ends within 13 seconds, well before API Gateway gives up on whoever waits for it.
CONNECT_SECONDS = 1.0
READ_SECONDS = 2.0
PAUSES = (0.05, 0.2, 0.8)

CONDITION_FAILED = "ConditionalCheckFailed"
CANCELLED = "TransactionCanceledException"

# Refused before anything was done, and likely to be accepted soon.
BUSY = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ReplicatedWriteConflictException",
        "ThrottlingError",
        "ThrottlingException",
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
NEVER_ARRIVED = (ConnectTimeoutError, EndpointConnectionError)
FAILURES = (PynamoDBException, ResponseParserError)

Answer = TypeVar("Answer")


class Attempts:
    """One after each of the `pauses`, and one before."""

    def __init__(self, pause: Callable[[float], None] = time.sleep, pauses: Sequence[float] = PAUSES) -> None:
        self._pause = pause
        self._pauses = pauses

    def at(self, call: Callable[[bool], Answer]) -> Answer:
        """Call until there is an answer. The call is told whether an attempt before it may have had its effect.

        Raises `Unavailable` when attempts are used up, or when another one would end the same.
        """
        in_doubt = False
        for seconds in (*self._pauses, None):
            try:
                return call(in_doubt)
            except FAILURES as error:
                if seconds is None or not _may_pass(error):
                    raise Unavailable(f"DynamoDB: {error}") from error
                in_doubt = in_doubt or _may_have_happened(error)
            # Spread, so that those who were refused together do not come back together.
            self._pause(seconds * random.uniform(0.5, 1.0))  # noqa: S311  # nothing to guess here
        raise AssertionError  # pragma: no cover


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may end better: it was busy, broken, or did not answer."""
    return _was_busy(error) or _may_have_happened(error) or isinstance(_cause(error), NEVER_ARRIVED)


def _may_have_happened(error: Exception) -> bool:
    """No answer, or the answer of something that broke in the middle."""
    cause = _cause(error)
    if isinstance(cause, ClientError):
        return _status(cause) >= 500
    return isinstance(cause, HTTPClientError | ResponseParserError) and not isinstance(cause, NEVER_ARRIVED)


def _was_busy(error: Exception) -> bool:
    code = _code(_cause(error))
    codes = {reason.code for reason in reasons_of(error) if reason} if code == CANCELLED else {code}
    return codes <= BUSY


def reasons_of(error: Exception) -> list[CancellationReason | None]:
    """Why a transaction was cancelled, item by item; empty if it was not."""
    return error.cancellation_reasons if isinstance(error, TransactWriteError) else []


def condition_failed(error: PynamoDBException) -> bool:
    return _code(error.cause) == f"{CONDITION_FAILED}Exception"


def _cause(error: Exception) -> BaseException | None:
    return error.cause if isinstance(error, PynamoDBException) else error


def _code(cause: BaseException | None) -> str:
    return str(cause.response["Error"].get("Code", "")) if isinstance(cause, ClientError) else ""


def _status(error: ClientError) -> int:
    """PynamoDB hands on an error with little more than its code; the rest is in the one that it was made from."""
    told = error.__cause__ if isinstance(error.__cause__, ClientError) else error
    return int(told.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
