"""A program's log: lines for people or JSON for machines, never a secret."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime

from nakadi.http.application import current_flow_id
from nakadi.model.outcomes import Unavailable, UnreadableEvents

REPEATED_CAUSE_INTERVAL_SECONDS = 60.0

# Functions write their metrics as log lines, which CloudWatch turns into metrics.
METRIC_NAMESPACE = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "Nakadi")

# No code logs tokens deliberately. This protects against a token in the text of an exception.
SECRET_PATTERN = re.compile(
    r"(?P<said>\bauthorization['\"]?\s*[:=]\s*(?:b?['\"])?(?:bearer\s+|basic\s+)?)[^\s'\",;]+"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)[^\s'\",;]{6,}"
    r"|\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    return SECRET_PATTERN.sub(lambda found: f"{found['said'] or found['scheme'] or ''}***", text)


def set_up_logging(*, json_lines: bool, level: str, access_log: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter())
    handler.addFilter(RepeatedCauseFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("nakadi.access").setLevel(logging.INFO if access_log else logging.WARNING)


MAX_REMEMBERED_LINES = 1000

TICKET_PATTERN = re.compile(r"\bETI[A-Za-z0-9]{24}\b")


class RepeatedCauseFilter(logging.Filter):
    """Passes the same line about a failing store or service, with the same cause, once a minute.

    A full disk fails many things several times a second. An error of a request has a ticket that the client has
    received, so it passes unless a line with the same ticket has passed. Instead of a ticket, the client of a stream
    has received the place of the events that cannot be read.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._logged_at: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        cause = _known_cause(record)
        if cause is None:
            return True
        what = str(record.msg)
        if record.levelno >= logging.ERROR:
            ticket = TICKET_PATTERN.search(record.getMessage())
            if ticket is not None:
                what = ticket[0]
            elif isinstance(cause, UnreadableEvents):
                what = cause.public
            else:
                return True
        line = (what, str(cause))
        with self._lock:
            now = self._monotonic()
            logged_at = self._logged_at.get(line)
            if logged_at is not None and now - logged_at < REPEATED_CAUSE_INTERVAL_SECONDS:
                return False
            self._logged_at.pop(line, None)
            self._logged_at[line] = now
            if len(self._logged_at) > MAX_REMEMBERED_LINES:
                del self._logged_at[next(iter(self._logged_at))]  # the oldest
        return True


def _known_cause(record: logging.LogRecord) -> Unavailable | None:
    """The failure of a store or another service that a line reports, if any."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    found = (each for each in (record.exc_info and record.exc_info[1], *arguments) if isinstance(each, Unavailable))
    return next(found, None)


def _without_known_trace(record: logging.LogRecord) -> logging.LogRecord:
    """The record, or a copy without the traceback if its cause is known, because a line is enough then. Other handlers
    still get the original.
    """
    cause = _known_cause(record)
    if cause is None or not record.exc_info:
        return record
    short, text = copy(record), record.getMessage()
    short.msg, short.args = text if str(cause) in text else f"{text}: {cause}", ()
    short.exc_info = short.exc_text = None
    return short


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        line, newline, trace = without_secrets(super().format(_without_known_trace(record))).partition("\n")
        flow_id = current_flow_id.get()
        return line + (f"  [{flow_id}]" if flow_id else "") + newline + trace


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record = _without_known_trace(record)
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
            "flow_id": current_flow_id.get(),
            "exception": without_secrets(self.formatException(record.exc_info)) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in fields.items() if value})
