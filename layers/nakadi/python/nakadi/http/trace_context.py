"""The trace to which a request belongs, according to W3C's headers: https://www.w3.org/TR/trace-context"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_STATE_CHARACTERS = 512

_is_parent = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,100})?"
).fullmatch
_is_state = re.compile(rf"[ -~]{{1,{MAX_STATE_CHARACTERS}}}").fullmatch


def trace_context(parent: str | None, state: str | None) -> Mapping[str, str]:
    """The trace context in these headers; empty without a valid parent. Invalid headers are ignored, so that tracing
    never makes a request fail.
    """
    if parent is None or not _is_parent(parent):
        return {}
    return {"traceparent": parent, "tracestate": state} if state and _is_state(state) else {"traceparent": parent}
