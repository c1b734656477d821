"""The formats of streams."""

import pytest

from nakadi.http.routes.streams import stream_media_type


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
    """Wildcards do not request server-sent events; naming them does, unless lines of JSON are preferred. (L37)"""
    assert (stream_media_type(accept or None) == "text/event-stream") is wanted


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("application/cloudevents-batch+json", "application/cloudevents-batch+json"),
        ("application/cloudevents-batch+json, */*", "application/cloudevents-batch+json"),
        ("application/x-json-stream, application/cloudevents-batch+json", "application/x-json-stream"),
        ("application/cloudevents+json", "application/x-json-stream"),
        ("application/cloudevents-batch+json;q=0", "application/x-json-stream"),
    ],
)
def test_only_who_names_cloud_events_gets_them(accept, media_type):
    """A client must name the media type of CloudEvents, and prefer it. (E20)"""
    assert stream_media_type(accept) == media_type
