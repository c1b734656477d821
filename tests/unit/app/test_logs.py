"""The program's own log."""

import json
import logging

import pytest

from nakadi.app.logs import JsonFormatter, RepeatedCauseFilter, TextFormatter, without_secrets
from nakadi.http.application import current_flow_id
from nakadi.model.outcomes import Unavailable, UnreadableEvents
from tests.support.clock import HandMovedClock

TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl-_x"


@pytest.fixture
def flow_id():
    token = current_flow_id.set("flow-1")
    yield
    current_flow_id.reset(token)


def log_record(message, *arguments, exc_info=None):
    return logging.LogRecord("nakadi.test", logging.ERROR, __file__, 1, message, arguments, exc_info)


def exception_info(message):
    error = RuntimeError(message)
    return RuntimeError, error, error.__traceback__


@pytest.mark.usefixtures("flow_id")
def test_a_line_for_machines_is_json():
    """A line is one JSON object with its time, level, logger, message and the flow id of the request."""
    fields = json.loads(JsonFormatter().format(log_record("%s failed\n%s", "it", "badly")))

    assert fields.pop("time").endswith("+00:00")
    assert fields == {"level": "ERROR", "logger": "nakadi.test", "message": "it failed\nbadly", "flow_id": "flow-1"}


def test_a_fault_is_in_the_same_line():
    """The traceback of a fault is a member of the JSON object; no lines follow the object."""
    line = JsonFormatter().format(log_record("oh", exc_info=exception_info("broken")))

    assert "\n" not in line
    assert "RuntimeError: broken" in json.loads(line)["exception"]
    assert "flow_id" not in json.loads(line)


@pytest.mark.usefixtures("flow_id")
def test_a_line_for_people_is_readable():
    """A line has a time, a level and a message; the flow id is at its end, before the traceback."""
    first, *trace = TextFormatter().format(log_record("oh", exc_info=exception_info("broken"))).split("\n")

    assert first.endswith(" ERROR   oh  [flow-1]")
    assert trace[-1] == "RuntimeError: broken"


@pytest.mark.parametrize("form", [JsonFormatter(), TextFormatter()])
@pytest.mark.parametrize(
    "said",
    [
        f"Authorization: Bearer {TOKEN}",
        "authorization: Basic YW5uOnNlY3JldA==",
        "{'Authorization': 'Bearer opaque-token-123'}",
        "headers=[(b'authorization', 'x')] bearer opaque-token-123",
        f"cannot decode {TOKEN}!",
    ],
)
def test_secrets_are_never_written(form, said):
    """If a token gets into a log line, it is removed from the message and from the traceback."""
    line = form.format(log_record("%s", said, exc_info=exception_info(said)))

    assert not any(secret in line for secret in (TOKEN, "YW5uOnNlY3JldA", "opaque-token-123"))
    assert "***" in line


def test_what_is_no_secret_stays():
    """Text that only resembles the words around a secret stays in the log line."""
    for text in ("the bearer of bad news", "Basic rules", "authorizations changed", "GET /event-types 200"):
        assert without_secrets(text) == text


FULL = Unavailable("/data/nakadi.db: database or disk is full")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_known_cause_is_a_line_without_a_traceback(formatter):
    """A fault of a store with a known cause is one line without a traceback. The record keeps its traceback for other
    handlers.
    """
    record = log_record("Append to %s failed", "order.placed", exc_info=(Unavailable, FULL, None))

    line = formatter.format(record)

    assert "Append to order.placed failed: /data/nakadi.db: database or disk is full" in line
    assert "Unavailable" not in line
    assert record.exc_info is not None


def test_a_known_cause_is_logged_once_a_minute():
    """A warning with the same cause is logged again after a minute. A warning with another cause, an error without a
    ticket, and a fault with an unknown cause are always logged.
    """
    clock = HandMovedClock()
    lines = RepeatedCauseFilter(clock.monotonic)

    def passes(level, cause):
        record = logging.LogRecord("nakadi.test", level, __file__, 1, "A call of %s failed: %s", ("s", cause), None)
        return lines.filter(record)

    assert passes(logging.WARNING, FULL)
    clock.move(59)
    assert not passes(logging.WARNING, FULL)
    assert passes(logging.WARNING, Unavailable("database is locked"))
    assert passes(logging.ERROR, FULL)
    assert passes(logging.WARNING, "another")
    assert passes(logging.WARNING, "another")
    clock.move(1)
    assert passes(logging.WARNING, FULL)


def test_an_error_is_logged_once_for_each_ticket():
    """Faults with the same cause have the same ticket, so one line with that ticket leads every client's report to the
    cause.
    """
    clock = HandMovedClock()
    lines = RepeatedCauseFilter(clock.monotonic)

    def passes(operation, ticket):
        text, arguments = "%s failed: %s", (operation, f'{{"detail":"… ({ticket})"}}')
        exc_info = (Unavailable, FULL, None)
        return lines.filter(logging.LogRecord("nakadi.test", logging.ERROR, __file__, 1, text, arguments, exc_info))

    first, second = "ETI" + 24 * "a", "ETI" + 24 * "b"
    assert passes("POST /event-types", first)
    assert not passes("POST /event-types", first)
    assert not passes("GET /subscriptions", first)
    assert passes("POST /event-types", second)


def test_streams_that_reach_the_same_unreadable_events_are_logged_once_a_minute():
    """A client that retries a stream whose next events cannot be read adds a line a minute to the log. (L81)"""
    clock = HandMovedClock()
    lines = RepeatedCauseFilter(clock.monotonic)

    def passes(partition):
        cause = UnreadableEvents(
            "down", event_type="e", partition=partition, first_offset=0, last_offset=9, public=f"Partition {partition}"
        )
        exc_info = (UnreadableEvents, cause, None)
        return lines.filter(logging.LogRecord("nakadi.test", logging.ERROR, __file__, 1, "%s failed", ("s",), exc_info))

    assert passes(0)
    clock.move(59)
    assert not passes(0)
    assert passes(1)
    clock.move(1)
    assert passes(0)
