"""Streams that end where their cursors say."""

import json

import pytest

from tests.support.api import a_business_definition, create_event_type
from tests.support.expected_lines import batch, keep_alive, position

LONG = "batch_flush_timeout=3000&batch_limit=10"
"""With these parameters, a stream ends only at the ends of its partitions, and sends a line only for events or an
end.
"""


def between(*bounds: tuple[str, str, str | None]) -> str:
    return json.dumps([{"partition": name, "offset": start, "until": end} for name, start, end in bounds])


def test_a_stream_ends_where_its_cursors_say(open_stream, publish):
    """Each partition is read up to its end, which a line reports; after the last one, the stream ends. (L78)"""
    publish("0", "a", "b", "c")
    publish("1", "d")
    where = between(("0", "BEGIN", position(1)), ("1", "BEGIN", position(0)))
    with open_stream(LONG, where) as opened:
        assert opened.headers["x-nakadi-until"] == "true"
        found = opened.rest()
    assert sorted(found.splitlines(keepends=True)) == sorted(
        [batch("0", 1, "a", "b"), keep_alive("0", 1), batch("1", 0, "d"), keep_alive("1", 0)]
    )


def test_events_that_nobody_gets_do_not_hold_up_the_end(api, open_stream):
    """The last events may be tombstones, or directed to a single subscription. The line at the end has a cursor after
    them. (L78)
    """
    name = create_event_type(api, a_business_definition(cleanup_policy="compact"))["name"]
    metadata = {
        "eid": "5e1b2f0a-6d3c-4e7b-9a51-0c2d4f6e8a90",
        "occurred_at": "2026-11-20T10:00:00Z",
        "partition_compaction_key": "k",
    }
    for where in ("events", "deleted-events", "deleted-events"):
        assert api.post(f"/event-types/{name}/{where}", json=[{"metadata": metadata}]).status_code == 200
    with open_stream(LONG, between(("0", "BEGIN", position(2))), name=name) as opened:
        event, end = opened.rest().splitlines(keepends=True)
    assert json.loads(event)["cursor"]["offset"] == position(0)
    assert end == keep_alive("0", 2)


def test_a_stream_may_end_where_it_begins(open_stream, publish):
    """If a partition's end is not after its start, the stream reports the end, and ends. (L78)"""
    publish("0", "a")
    for start, end in ((position(0), position(0)), ("BEGIN", "BEGIN"), ("BEGIN", "2020-01-01T00:00:00Z")):
        with open_stream(LONG, between(("0", start, end))) as opened:
            assert opened.rest() == keep_alive("0", 0 if start == end == position(0) else -1)


def test_a_stream_waits_for_events_up_to_its_end(open_stream, publish):
    """The end of a partition may be an offset that no event has yet. A partition without an end continues. (L78)"""
    with open_stream(LONG + "&stream_limit=11", between(("0", "BEGIN", position(0)), ("1", "BEGIN", None))) as opened:
        publish("0", "a")
        assert opened.until(b"}}\n") == batch("0", 0, "a") + keep_alive("0", 0)
        publish("1", *"abcdefghij")
        assert opened.rest() == batch("1", 9, *"abcdefghij")


@pytest.mark.parametrize(("end", "status"), [('"x"', 412), ("{}", 400), ("[1]", 400), ('"001-0007-0"', 412)])
def test_a_place_that_is_none_is_refused(open_stream, end, status):
    """An `until` that is not an offset of the partition gets 412; one that is not a string gets 400. (L78)"""
    assert open_stream(LONG, f'[{{"partition":"0","offset":"BEGIN","until":{end}}}]').status == status
