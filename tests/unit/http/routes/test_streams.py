"""Which form a stream has."""

import pytest

from nakadi.http.routes.streams import wants_server_sent_events


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream", True),
        ("application/json, text/event-stream;q=0.5", True),
        ("text/event-stream; charset=utf-8", True),
        ("text/event-stream, application/x-json-stream", True),
        ("application/x-json-stream;q=0.5, text/event-stream", True),
        ("application/x-json-stream, text/event-stream, application/problem+json, application/json", False),
        ("text/event-stream;q=0", False),
        ("text/event-stream; q=0.0, */*", False),
        ("text/event-streams", False),
        ("*/*", False),
        ("text/*", False),
        ("", False),
    ],
)
def test_only_who_names_server_sent_events_gets_them(accept, wanted):
    """Wildcards do not ask for server-sent events; naming them does, unless lines of JSON are liked better. (L37)"""
    assert wants_server_sent_events(accept or None) is wanted
