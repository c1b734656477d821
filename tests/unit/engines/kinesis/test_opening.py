"""The URL of a Kinesis log."""

import pytest

from nakadi.app.engines import open_event_log
from nakadi.engines.kinesis.event_log import KinesisOptions
from nakadi.engines.kinesis.opening import new_kinesis_client, parse_options, parse_stream_url
from nakadi.model.outcomes import BadSetting
from tests.support.clock import HandMovedClock


def test_a_url_names_the_stream_and_what_else_is_wanted():
    """The host is the stream's name; the query contains the region, the endpoint and options."""
    name, asked = parse_stream_url("kinesis://events?region=eu-central-1&lease=0.5&window_bytes=1000")
    assert (name, asked["region"]) == ("events", "eu-central-1")
    assert parse_options(name, asked) == KinesisOptions(lease=0.5, window_bytes=1000)
    assert parse_options(*parse_stream_url("kinesis://events")) == KinesisOptions()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kinesis:", "names no stream"),
        ("kinesis:///events", "names no stream"),
        ("kinesis://events?leese=2", "leese"),
        ("kinesis://events?lease=long", "long"),
    ],
)
def test_a_url_that_cannot_be_understood_is_refused(url, said):
    """A mistake in a URL prevents the start, and the message names it."""
    with pytest.raises(ValueError, match=said):
        parse_options(*parse_stream_url(url))


def test_a_log_needs_an_index():
    """A Kinesis log without an index is refused, because offsets could not be counted."""
    with pytest.raises(BadSetting, match="log index"):
        open_event_log("kinesis://events", HandMovedClock())


def test_the_client_tries_nothing_again_and_waits_for_nothing_long():
    """The engine, and not the client, decides which calls to repeat, because it knows their possible effects."""
    made = new_kinesis_client({"region": "eu-central-1"})
    config = made.meta.config
    made.close()
    assert config.retries["total_max_attempts"] == 1
    assert (config.connect_timeout, config.read_timeout) == (2, 10)
