"""The trace context of a request."""

import pytest

from nakadi.http.trace_context import MAX_STATE_CHARACTERS, trace_context

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_both_headers_are_taken_as_they_are():
    """A request has its trace context from two headers. The state is optional, and a later version of the parent may
    have additional fields at its end. (E10)
    """
    assert trace_context(PARENT, None) == {"traceparent": PARENT}
    assert trace_context(PARENT, "a=1,b=2") == {"traceparent": PARENT, "tracestate": "a=1,b=2"}
    assert trace_context(f"01{PARENT[2:]}-more", None)


@pytest.mark.parametrize(
    ("parent", "state"),
    [
        (None, "a=1"),
        ("", None),
        (PARENT.upper(), None),
        (f"ff{PARENT[2:]}", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", None),
        (PARENT[:-1], None),
        (f"{PARENT}, {PARENT}", None),
        (f"{PARENT}-{'x' * 1000}", None),
    ],
)
def test_without_a_valid_parent_there_is_none(parent, state):
    """Without a valid parent, the request succeeds without a trace context. (E10)"""
    assert trace_context(parent, state) == {}


@pytest.mark.parametrize("state", ["", "x" * (MAX_STATE_CHARACTERS + 1), "\xe4"])
def test_a_state_that_cannot_be_passed_on_is_left_out(state):
    """If the state cannot be passed on, the parent is used alone. (E10)"""
    assert trace_context(PARENT, state) == {"traceparent": PARENT}
