"""Characters at which many client libraries split lines: U+2028, U+2029 and U+0085."""

import json

import pytest

from tests.support.consumer import Consumer
from tests.support.expected_lines import cursors

SEPARATORS = "a \u2028 b \u2029 c \u0085 d"
FORMATS = ["application/x-json-stream", "text/event-stream"]


def parse_events(stream_text: str) -> list[object]:
    """The events of a stream whose text is divided into lines by `str.splitlines`."""
    found = []
    for line in stream_text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            found += json.loads(data).get("events", [])
    return found


@pytest.mark.parametrize("accepted", FORMATS)
def test_no_line_of_a_stream_can_be_torn(open_stream, publish, accepted):
    """A stream sends the three characters as escapes, so that `str.splitlines` finds its lines. (L71)"""
    publish("0", SEPARATORS, "plain", SEPARATORS)
    with open_stream(
        "stream_limit=3&batch_limit=3", cursors(_0="BEGIN"), headers={"Accept": accepted}
    ) as open_low_level_stream:
        text = open_low_level_stream.rest().decode()
    assert [event["v"] for event in parse_events(text)] == [SEPARATORS, "plain", SEPARATORS]
    assert not {"\u2028", "\u2029", "\u0085"}.intersection(text)


@pytest.mark.parametrize("accepted", FORMATS)
def test_no_line_of_a_subscription_can_be_torn(api, event_type, publish, accepted):
    """Streams of subscriptions also send these characters as escapes. (S321)"""
    publish("0", SEPARATORS, "plain")
    body = {"owning_application": "lines", "event_types": [event_type], "read_from": "begin"}
    subscription = api.post("/subscriptions", json=body).json()
    options = {"batch_limit": 2, "batch_flush_timeout": 1, "stream_limit": 2}
    with Consumer(api, subscription, {"Accept": accepted}, **options, commit_timeout=1) as consumer:
        text = consumer.rest().decode()
    assert [event["v"] for event in parse_events(text)] == [SEPARATORS, "plain"]
