"""Problems (RFC 7807): the only place that maps outcomes to statuses."""

from __future__ import annotations

import logging
import secrets
import string
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from msgspec import Struct

from nakadi.http.message import JSON_MEDIA_TYPE, PROBLEM_MEDIA_TYPE, Response, json_bytes
from nakadi.http.reader_views import affected_readers_view
from nakadi.model import outcomes
from nakadi.ports.coordination import AssignmentChanged
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from nakadi.ports.registry import ChangedMeanwhile

log = logging.getLogger(__name__)


class MethodNotAllowed(outcomes.Outcome):
    """Raised when a path exists, but has no operation for the method."""

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"Request method '{method}' not supported")
        self.allowed = allowed


class NotAcceptable(outcomes.Outcome):
    """Raised when the client wants an answer in a form that this path cannot produce."""


class UnsupportedMediaType(outcomes.Outcome):
    """Raised when the body comes in a form that this path does not read."""


class RequestTooSlow(outcomes.Outcome):
    """Raised when a client takes too long to send the announced bytes."""


class RequestRefusal(Struct, frozen=True):
    """The reason why a request is not acceptable, independent of its operation."""

    status: HTTPStatus
    detail: str


# The first match is used, so subclasses with their own status come before their base class.
STATUSES_BY_OUTCOME_CLASS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (outcomes.Malformed, HTTPStatus.BAD_REQUEST),
    (outcomes.NotAuthenticated, HTTPStatus.UNAUTHORIZED),
    (outcomes.NotPermitted, HTTPStatus.FORBIDDEN),
    (outcomes.NotFound, HTTPStatus.NOT_FOUND),
    (MethodNotAllowed, HTTPStatus.METHOD_NOT_ALLOWED),
    (NotAcceptable, HTTPStatus.NOT_ACCEPTABLE),
    (RequestTooSlow, HTTPStatus.REQUEST_TIMEOUT),
    (outcomes.Conflict, HTTPStatus.CONFLICT),
    (outcomes.UnusableCursor, HTTPStatus.PRECONDITION_FAILED),
    (outcomes.TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (UnsupportedMediaType, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (outcomes.Invalid, HTTPStatus.UNPROCESSABLE_ENTITY),
    (outcomes.FeatureSwitchedOff, HTTPStatus.NOT_IMPLEMENTED),
    (outcomes.TryLater, HTTPStatus.SERVICE_UNAVAILABLE),
    (outcomes.Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
)

# Something changed between a read and a write. A repeated request reads the current state.
LOST_RACE_ERRORS = (AssignmentChanged, ChangedMeanwhile, SealedTopic, UnknownTopic)
LOST_RACE_MESSAGE = "This was changed by others meanwhile, please repeat request"

# Clients get a ticket instead of an internal error, by which operators find the error in the log. Answers with the same
# known cause, such as a full disk, have the same ticket for a minute, so one line of the log is enough for all of them.
TICKET_LIFETIME_SECONDS = 60.0
MAX_CAUSES_WITH_TICKETS = 100
UNAVAILABLE_MESSAGE = "A part of the broker does not answer at the moment, please repeat request"

# How long a client should wait before it tries again, in seconds.
RETRY_AFTER_SECONDS = "1"

CONSTRAINT_VIOLATION_TYPE = "https://zalando.github.io/problem/constraint-violation"


def problem_of_error(error: Exception) -> Response:
    """The Problem that answers an outcome or a fault; an unknown error is a 500 that can be found in the logs.

    For a fault, the Problem has only texts that were written for clients.
    """
    if isinstance(error, outcomes.MalformedFields):
        return _bad_request_with_violation_list(error)
    if isinstance(error, LOST_RACE_ERRORS):
        return problem_of_error(outcomes.TryLater(LOST_RACE_MESSAGE))
    status = next((status for kind, status in STATUSES_BY_OUTCOME_CLASS if isinstance(error, kind)), None)
    if status is None:
        return _problem_response(
            HTTPStatus.INTERNAL_SERVER_ERROR, f"An internal error happened. Please report it. ({_new_ticket()})"
        )
    if isinstance(error, outcomes.Unavailable):
        return _problem_response(
            status,
            error.public or f"{UNAVAILABLE_MESSAGE} ({_tickets.ticket_of(error)})",
            headers=_problem_headers(error, status),
            explanations={"unreadable": unreadable_view(error)} if isinstance(error, outcomes.UnreadableEvents) else {},
        )
    if isinstance(error, outcomes.Violations):
        return _unprocessable_with_detail_text(error, status)
    return _problem_response(
        status, str(error), headers=_problem_headers(error, status), explanations=_explanations(error)
    )


def unreadable_view(error: outcomes.UnreadableEvents) -> dict[str, Any]:
    """The place of events that cannot be read, by which clients distinguish damage from a pause."""
    return {
        "event_type": error.event_type,
        "partition": str(error.partition),
        "first_offset": error.first_offset,
        "last_offset": error.last_offset,
    }


def make_and_log_problem(error: Exception, during: str) -> Response:
    """The Problem that answers an error. A fault is logged together with the ticket in its Problem, which leads to the
    cause."""
    problem = problem_of_error(error)
    if problem.status >= 500 and not isinstance(error, outcomes.Outcome):
        log.error("%s failed: %s", during, problem.body.decode(), exc_info=error)
    return problem


def token_problem(error: outcomes.NotAuthenticated | outcomes.NotPermitted) -> Response:
    """The answer to a request with a missing or insufficient token. It has a type of its own, and is plain JSON, as
    clients expect.
    """
    status = HTTPStatus.UNAUTHORIZED if isinstance(error, outcomes.NotAuthenticated) else HTTPStatus.FORBIDDEN
    body = _typed_problem_members(status, error.detail, problem_type=f"https://httpstatus.es/{status.value}")
    headers = {"www-authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
    return Response(status.value, {"content-type": JSON_MEDIA_TYPE, **headers}, json_bytes(body))


def _unprocessable_with_detail_text(error: outcomes.Violations, status: HTTPStatus) -> Response:
    """The Problem for violations. Its members have an order of their own, which clients know."""
    plain = plain_problem_members(status, error.detail)
    body = {name: plain[name] for name in ("type", "status", "detail", "title")}
    return Response(status.value, {"content-type": PROBLEM_MEDIA_TYPE}, json_bytes(body))


def _bad_request_with_violation_list(error: outcomes.MalformedFields) -> Response:
    listed = [{"field": each.path, "message": each.message} for each in error.violations]
    body = {"violations": listed, "type": CONSTRAINT_VIOLATION_TYPE, "status": 400, "title": "Constraint Violation"}
    return Response(400, {"content-type": PROBLEM_MEDIA_TYPE}, json_bytes(body))


def _problem_response(
    status: HTTPStatus,
    detail: str,
    *,
    headers: dict[str, str] | None = None,
    explanations: Mapping[str, Any] | None = None,
) -> Response:
    body = plain_problem_members(status, detail) | dict(explanations or {})
    return Response(status.value, {"content-type": PROBLEM_MEDIA_TYPE, **(headers or {})}, json_bytes(body))


def plain_problem_members(status: HTTPStatus, detail: str) -> dict[str, Any]:
    """The members of a plain Problem, for callers that write the response themselves."""
    return _typed_problem_members(status, detail, problem_type=f"http://httpstatus.es/{status.value}")


def _typed_problem_members(status: HTTPStatus, detail: str, problem_type: str) -> dict[str, Any]:
    body: dict[str, Any] = {"type": problem_type, "title": status.phrase, "status": status.value}
    return body | {"detail": detail} if detail else body


def _explanations(error: Exception) -> dict[str, Any]:
    """The further members of a Problem about a change of a schema."""
    if not isinstance(error, outcomes.IncompatibleSchema):
        return {}
    reasons = [{"rule": each.rule, "path": each.path, "explanation": each.explanation} for each in error.reasons]
    found = {"reasons": reasons, "readers": affected_readers_view(error.readers)}
    return {name: value for name, value in found.items() if value}


def _problem_headers(error: Exception, status: HTTPStatus) -> dict[str, str]:
    if isinstance(error, MethodNotAllowed):
        return {"allow": error.allowed}
    if isinstance(error, UnsupportedMediaType):
        return {"accept": f"{JSON_MEDIA_TYPE}, application/*+json"}
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        if isinstance(error, outcomes.Unavailable):
            return {"retry-after": str(error.retry_after_seconds)}
        return {"retry-after": RETRY_AFTER_SECONDS}
    return {}


class Tickets:
    """The tickets of faults with known causes."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._issued: dict[str, tuple[str, float]] = {}

    def ticket_of(self, error: outcomes.Unavailable) -> str:
        """The ticket of an error, which all errors with the same text share for a minute."""
        cause = str(error)
        with self._lock:
            now = self._monotonic()
            ticket, issued_at = self._issued.pop(cause, ("", -TICKET_LIFETIME_SECONDS))
            if not ticket or now - issued_at >= TICKET_LIFETIME_SECONDS:
                ticket, issued_at = _new_ticket(), now
            self._issued[cause] = (ticket, issued_at)
            if len(self._issued) > MAX_CAUSES_WITH_TICKETS:
                # This drops the cause whose last error was the longest ago.
                del self._issued[next(iter(self._issued))]
        return ticket


def _new_ticket() -> str:
    alphabet = string.ascii_letters + string.digits
    return "ETI" + "".join(secrets.choice(alphabet) for _ in range(24))


_tickets = Tickets()
