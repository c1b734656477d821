"""The lines that a client reads from an open stream."""

import time

import pytest

from tests.support.expected_lines import batch, cursors, keep_alive


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/html, image/gif;q=.2", "text/plain", "x"])
def test_a_stream_is_a_stream_whatever_is_accepted(open_stream, accept):
    """A stream has the content type application/x-json-stream, and is chunked, whatever the client accepts. (L37)"""
    headers = {} if accept is None else {"Accept": accept}
    open_low_level_stream = open_stream("stream_timeout=1&batch_flush_timeout=1", headers=headers)
    assert open_low_level_stream.status == 200
    assert open_low_level_stream.headers["content-type"] == "application/x-json-stream"
    assert open_low_level_stream.headers["transfer-encoding"] == "chunked"
    assert open_low_level_stream.headers.get("connection", "keep-alive") != "close"


def test_a_stream_warns_of_its_age(open_stream):
    """A stream has a Warning header that points to subscriptions. (L39)"""
    assert open_stream().headers["warning"] == (
        "299 - nakadi - the Low-level API is deprecated and will be removed from a future release. "
        "Please consider migrating to the Subscriptions API."
    )


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_head_comes_at_once(open_stream, encoding):
    """Status and headers do not wait for the first line. (L38)"""
    assert open_stream("batch_flush_timeout=300", headers={"Accept-Encoding": encoding}).status == 200


def test_batches_and_keep_alives_are_these_bytes(open_stream, publish):
    """A stream sends batches of a partition, and then a keep-alive with the last cursor, in exactly these bytes.
    (L41, L42, L44, L45, L46)
    """
    publish("1", "a", "b", "c")
    with open_stream(
        "batch_limit=2&batch_flush_timeout=2&stream_keep_alive_limit=1", cursors(_1="BEGIN")
    ) as open_low_level_stream:
        assert open_low_level_stream.rest() == batch("1", 1, "a", "b") + batch("1", 2, "c") + keep_alive("1", 2)


def test_an_untouched_partition_is_at_minus_one(open_stream):
    """Each idle partition sends its keep-alive, with the offset before the first event. (L44, L49, L55, L56)"""
    with open_stream("stream_timeout=1&batch_flush_timeout=1") as open_low_level_stream:
        assert sorted(open_low_level_stream.rest().splitlines(keepends=True)) == [
            keep_alive(each, -1) for each in "012"
        ]


def test_a_keep_alive_limit_ends_the_stream(open_stream):
    """With three partitions and a keep-alive limit of 2, an idle stream ends after six lines. (L55)"""
    with open_stream("batch_flush_timeout=1&stream_keep_alive_limit=2") as open_low_level_stream:
        assert len(open_low_level_stream.rest().splitlines()) == 6


def test_eight_events_five_a_batch(open_stream, publish):
    """With batch_limit 5, eight events come in batches of 5 and 3, and idle partitions send keep-alives. (L57)"""
    publish("0", *"abcdefgh")
    limits = "batch_limit=5&batch_flush_timeout=2&stream_timeout=2"
    with open_stream(limits, cursors(_0="BEGIN", _1="BEGIN", _2="BEGIN")) as open_low_level_stream:
        lines = open_low_level_stream.rest().splitlines(keepends=True)
    expected = [batch("0", 4, *"abcde"), batch("0", 7, *"fgh"), keep_alive("1", -1), keep_alive("2", -1)]
    assert sorted(lines) == sorted(expected)


def test_by_default_every_event_has_its_line(open_stream, publish):
    """Without batch_limit, batches have one event. (L50)"""
    publish("0", *"abc")
    with open_stream("stream_limit=3", cursors(_0="BEGIN")) as open_low_level_stream:
        assert open_low_level_stream.rest() == b"".join(batch("0", offset, value) for offset, value in enumerate("abc"))


def test_a_stream_limit_is_exact(open_stream, publish):
    """After stream_limit events the stream ends, with a shorter last batch if necessary. (L51, L53, L54)"""
    publish("0", *"abcde")
    with open_stream("stream_limit=3&batch_limit=2", cursors(_0="BEGIN")) as open_low_level_stream:
        assert open_low_level_stream.rest() == batch("0", 1, "a", "b") + batch("0", 2, "c")


def test_gzip_is_flushed_with_every_batch(open_stream, publish):
    """A compressed stream delivers each batch when it is sent, not when the compressor's buffer is full. (L40)"""
    with open_stream(
        "stream_limit=3", cursors(_0="BEGIN"), headers={"Accept-Encoding": "gzip"}
    ) as open_low_level_stream:
        assert open_low_level_stream.headers["content-encoding"] == "gzip"
        for offset, value in enumerate("abc"):
            publish("0", value)
            assert open_low_level_stream.line() == batch("0", offset, value)
        assert open_low_level_stream.rest() == b""


def test_nothing_is_packed_unasked(open_stream, publish):
    """A client that does not ask for gzip gets plain bytes. (L40)"""
    publish("0", "a")
    with open_stream(
        "stream_limit=1", cursors(_0="BEGIN"), headers={"Accept-Encoding": "identity"}
    ) as open_low_level_stream:
        assert "content-encoding" not in open_low_level_stream.headers
        assert open_low_level_stream.rest() == batch("0", 0, "a")


def test_many_streams_at_once_are_fine(open_stream, publish):
    """There is no limit on parallel streams, even for one client and partition. (L65, L66)"""
    # A shard that answers five reads per second needs some time for all of them, and nothing else is sent meanwhile.
    open_low_level_stream = [
        open_stream("stream_limit=1&batch_flush_timeout=600", cursors(_0="BEGIN")) for _ in range(20)
    ]
    publish("0", "a")
    for each in open_low_level_stream:
        assert each.rest() == batch("0", 0, "a")


def test_an_event_is_there_soon(open_stream, publish):
    """An event reaches an open stream at once, without waiting for the next timer."""
    with open_stream("stream_limit=1&batch_flush_timeout=300", cursors(_0="BEGIN")) as open_low_level_stream:
        time.sleep(0.3)  # the stream is idle now
        publish("0", "a")
        assert open_low_level_stream.rest() == batch("0", 0, "a")
