"""The log entries of a test, without entries from threads that earlier tests left in its process."""

from __future__ import annotations

import logging
import threading

import pytest


def records_of_this_thread(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.thread == threading.get_ident()]


def records_of(logger: str, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of a logger, and of the loggers below it."""
    return [each for each in caplog.records if f"{each.name}.".startswith(f"{logger}.")]
