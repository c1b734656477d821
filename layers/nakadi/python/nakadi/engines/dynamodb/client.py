"""Calls to DynamoDB tables: each has a time limit, and a failure says whether the call may have succeeded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import uuid4

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, HTTPClientError
from botocore.parsers import ResponseParserError
from pynamodb.connection import Connection
from pynamodb.exceptions import CancellationReason, PynamoDBException, TransactWriteError
from pynamodb.transactions import TransactWrite

from nakadi.model.outcomes import Unavailable

# With four attempts a call ends within 13 seconds, well before API Gateway gives up on the request.
CONNECT_TIMEOUT_SECONDS = 1.0
READ_TIMEOUT_SECONDS = 2.0
RETRY_PAUSES_SECONDS = (0.05, 0.2, 0.8)

# Pauses after conflicts between transactions that invalidate caches. All of these transactions increase counters in one
# item, so they conflict, however different their other changes are. DynamoDB rejects one of two conflicting
# transactions at once.
CONFLICT_RETRY_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.1, 0.2, 0.2, 0.4, 0.4)

CONDITION_FAILED_CODE = "ConditionalCheckFailed"
TRANSACTION_CANCELLED_CODE = "TransactionCanceledException"

# Errors of calls that were rejected before anything was done, and will probably be accepted soon.
BUSY_ERROR_CODES = frozenset(
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
CONFLICT_ERROR_CODES = frozenset({"TransactionConflict", "TransactionConflictException"})
NOT_SENT_ERRORS = (ConnectTimeoutError, EndpointConnectionError)
CALL_ERRORS = (PynamoDBException, ResponseParserError)

T = TypeVar("T")


class CallRetryPolicy:
    """Repeats calls that failed: there is one attempt before the first of the `pauses`, and one after each."""

    def __init__(
        self, sleep: Callable[[float], None] = time.sleep, pauses: Sequence[float] = RETRY_PAUSES_SECONDS
    ) -> None:
        self._sleep = sleep
        self._pauses = pauses

    def call_with_retries(self, call: Callable[[bool], T], conflict_pauses: Sequence[float] = ()) -> T:
        """Repeat a call until there is an answer. The argument of `call` says whether an earlier attempt may have taken
        effect.

        `conflict_pauses` are additional pauses for a transaction that conflicted with another one, before the usual
        ones. Raises `Unavailable` when attempts are used up, or when another attempt would fail in the same way.
        """
        in_doubt = False
        pauses, waiting = iter(self._pauses), iter(conflict_pauses)
        while True:
            try:
                return call(in_doubt)
            except CALL_ERRORS as error:
                seconds = next(waiting, None) if _is_transaction_conflict(error) else None
                seconds = next(pauses, None) if seconds is None else seconds
                if seconds is None or not _can_be_retried(error):
                    raise Unavailable(f"DynamoDB: {error}") from error
                in_doubt = in_doubt or _may_have_taken_effect(error)
            # Randomized, so that callers that were rejected together do not retry together.
            self._sleep(seconds * random.uniform(0.5, 1.0))  # noqa: S311  # nothing to guess here


def _can_be_retried(error: Exception) -> bool:
    """Whether another attempt may succeed: DynamoDB was busy, failed, or did not answer."""
    return (
        _is_busy_error(error) or _may_have_taken_effect(error) or isinstance(_underlying_error(error), NOT_SENT_ERRORS)
    )


def _may_have_taken_effect(error: Exception) -> bool:
    """Whether a call without an answer, or with an error in the middle, may have taken effect."""
    cause = _underlying_error(error)
    if isinstance(cause, ClientError):
        return _http_status(cause) >= 500
    return isinstance(cause, HTTPClientError | ResponseParserError) and not isinstance(cause, NOT_SENT_ERRORS)


def _is_busy_error(error: Exception) -> bool:
    return _error_codes(error) <= BUSY_ERROR_CODES


def _is_transaction_conflict(error: Exception) -> bool:
    return bool(_error_codes(error) & CONFLICT_ERROR_CODES)


def _error_codes(error: Exception) -> set[str]:
    """The error codes of a rejected call; for a transaction, those of all its changes."""
    code = _error_code(_underlying_error(error))
    return (
        {str(reason.code) for reason in cancellation_reasons(error) if reason}
        if code == TRANSACTION_CANCELLED_CODE
        else {code}
    )


def cancellation_reasons(error: Exception) -> list[CancellationReason | None]:
    """Why a transaction was cancelled, item by item; empty if it was not."""
    return error.cancellation_reasons if isinstance(error, TransactWriteError) else []


def is_condition_failure(error: PynamoDBException) -> bool:
    return _error_code(error.cause) == f"{CONDITION_FAILED_CODE}Exception"


def _underlying_error(error: Exception) -> BaseException | None:
    return error.cause if isinstance(error, PynamoDBException) else error


def _error_code(cause: BaseException | None) -> str:
    return str(cause.response["Error"].get("Code", "")) if isinstance(cause, ClientError) else ""


def _http_status(error: ClientError) -> int:
    """The HTTP status of an error. PynamoDB's error has little more than the code; the status is in the original
    error.
    """
    answer = error.__cause__ if isinstance(error.__cause__, ClientError) else error
    return int(answer.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def transaction_attempt(add_changes: Callable[[TransactWrite], None], connection: Connection) -> Callable[[bool], bool]:
    """A function that attempts to make all added changes in one transaction; it returns False if a condition does not
    hold.

    DynamoDB recognizes a transaction by its token for ten minutes, and does not execute it twice.
    """
    token = uuid4().hex

    def attempt(_: bool) -> bool:
        try:
            with TransactWrite(connection=connection, client_request_token=token) as transaction:
                add_changes(transaction)
        except TransactWriteError as error:
            if any(reason and reason.code == CONDITION_FAILED_CODE for reason in cancellation_reasons(error)):
                return False
            raise
        return True

    return attempt
