"""A program's log: lines for people or JSON for machines, never a secret."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime

from nakadi.http.application import current_flow_id

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
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("nakadi.access").setLevel(logging.INFO if access_log else logging.WARNING)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        line, newline, trace = without_secrets(super().format(record)).partition("\n")
        flow_id = current_flow_id.get()
        return line + (f"  [{flow_id}]" if flow_id else "") + newline + trace


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
            "flow_id": current_flow_id.get(),
            "exception": without_secrets(self.formatException(record.exc_info)) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in fields.items() if value})
