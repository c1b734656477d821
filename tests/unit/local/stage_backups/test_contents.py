"""Whether a copy of a stage is consistent, and what it becomes with a new stream."""

import json

import pytest

from nakadi.engines.common.log_index_json import (
    indexing_state_from_json,
    indexing_state_json,
    segment_json,
    topic_from_json,
    topic_json,
)
from nakadi.local.stage_backups.contents import Contents, is_lasting, is_restored, topic_in_new_stream
from nakadi.model.log_index import (
    ArchiveLocation,
    IndexingState,
    IndexSegment,
    RecordPosition,
    Topic,
    UnfinishedAppendPart,
)
from tests.support.builders import an_event_type

PLACE = RecordPosition("shard-1", 7)


def table_item(place, sort_key, body):
    return {"place": {"S": place}, "item": {"S": sort_key}, "body": {"S": body}, "revision": {"N": "3"}}


def topic_items(topic, *ends):
    heads = [
        table_item(
            "topic#t", f"head#{number:06d}", indexing_state_json(IndexingState(last_position=PLACE, next_offset=end))
        )
        for number, end in enumerate(ends)
    ]
    return [*heads, table_item("topic#t", "topic", topic_json(topic))]


def segment_item(start, end, *, archived=True):
    body = IndexSegment(
        state_before=IndexingState(next_offset=start),
        offset_count=end - start,
        first_stored_at=1,
        last_stored_at=2,
        location=ArchiveLocation(f"log/{start}", 0, 9) if archived else None,
    )
    return table_item("segments#t/0", f"{start:020d}", segment_json(body))


def contents_of(topic, end, *segments):
    contents = Contents()
    contents.add_topic("t", topic_items(topic, end))
    for each in segments:
        contents.add_segment(("t", 0), each)
    return contents


@pytest.mark.parametrize(
    ("oldest", "end", "segments", "problem"),
    [
        (0, 0, [], None),
        (0, 9, [segment_item(0, 4), segment_item(4, 9)], None),
        (0, 9, [segment_item(0, 9), segment_item(4, 9)], None),
        (6, 9, [segment_item(4, 9)], None),
        (9, 9, [], None),
        (0, 9, [segment_item(0, 9), segment_item(9, 12)], None),
        (0, 9, [segment_item(0, 4)], "The index lacks offsets 4 to 8 of t/0."),
        (0, 9, [segment_item(0, 4), segment_item(5, 9)], "The index lacks offsets 4 to 4 of t/0."),
        (2, 9, [segment_item(4, 9)], "The index lacks offsets 2 to 3 of t/0."),
        (0, 9, [], "The index lacks offsets 0 to 8 of t/0."),
        (0, 9, [segment_item(0, 9, archived=False)], "Offsets from 0 of t/0 are not archived."),
    ],
)
def test_each_offset_is_in_the_archive(oldest, end, segments, problem):
    """A copy is consistent only if each offset of a partition, from the oldest to the last, is in a segment. (B16)"""
    assert contents_of(Topic(partitions=1, oldest={0: oldest}), end, *segments).problem == problem


def with_event_type(contents, **fields):
    event_type = an_event_type(**fields)
    contents.event_types[event_type.name] = event_type
    return event_type


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        (Topic(partitions=1), None),
        (Topic(partitions=1, sealed=True), "has moved to another timeline meanwhile."),
        (Topic(partitions=0, continued_in="t~2"), "has only 0 partitions."),
        (None, "is not in the index."),
    ],
)
def test_event_types_have_their_topics(topic, problem):
    """A copy is consistent only if the topic of each event type is in the index, accepts events, and has as many
    partitions as the event type. (B16)
    """
    contents = Contents()
    event_type = with_event_type(contents)
    if topic is not None:
        name = event_type.timeline.topic
        contents.add_topic(name, topic_items(topic))
    found = contents.problem
    assert found is None if problem is None else found.endswith(problem)


def test_a_new_stream_goes_on_numbering_where_the_old_one_was():
    """For a new stream, no record is indexed yet, offsets continue, and older events are only in the archive. (B21)"""
    part = UnfinishedAppendPart(b"a", 0, PLACE, 1)
    state = IndexingState(
        last_position=PLACE, next_offset=9, latest_stored_at=5, sealed_at=PLACE, unfinished_parts=(part,)
    )
    items = [
        table_item("topic#t", "head#000001", indexing_state_json(state)),
        table_item("topic#t", "topic", topic_json(Topic(partitions=2, oldest={1: 4}))),
    ]

    head, topic = topic_in_new_stream(items)

    assert head["revision"] == {"N": "3"}
    assert indexing_state_from_json(head["body"]["S"]) == IndexingState(
        next_offset=9, latest_stored_at=5, sealed_at=PLACE
    )
    assert topic_from_json(topic["body"]["S"]) == Topic(partitions=2, oldest={1: 4}, compacted={1: 9})


def test_what_belongs_to_processes_and_tables_stays_behind():
    """A copy leaves out leases and notifications, which belong to processes that have ended. A restoration without
    Iceberg tables has all documents that are not about a table. (B22)
    """
    assert [is_lasting({"place": {"S": each}}) for each in ("leases", "news", "subscription#s")] == [False, False, True]
    assert is_restored({"kind": {"S": "event-types"}}, [])


def test_cursors_are_not_ahead_of_the_log():
    """A cursor after the last event would skip new events, so such a copy is not accepted. (B16)"""
    contents = contents_of(Topic(partitions=1), 3, segment_item(0, 3))
    event_type = with_event_type(contents)
    contents.add_topic(event_type.timeline.topic, topic_items(Topic(partitions=1), 0))
    for offset, problem in ((-1, None), (0, "is at 001-0001-000000000000000000, after the last event.")):
        contents.add_coordination_item(
            {
                "place": {"S": "subscription#s"},
                "item": {"S": f"offset#{event_type.name}#0"},
                "timeline": {"N": "1"},
                "position": {"N": str(offset)},
                "since": {"N": "1"},
            }
        )
        assert contents.problem is None if problem is None else contents.problem.endswith(problem)


def test_storages_in_kafka_are_left_out():
    """No backup has the events in Kafka, so their topics are not looked up. (B23)"""
    contents = Contents()
    event_type = with_event_type(contents)
    storage = {"type": "kafka", "configuration": {}}
    document = {
        "kind": {"S": "storages"},
        "key": {"S": event_type.timeline.storage_id},
        "revision": {"N": "1"},
        "written_by": {"S": ""},
        "body": {"S": json.dumps(storage)},
    }

    contents.add_document(document)

    assert list(contents.topics()) == []
    assert contents.problem is None
    assert contents.storages_elsewhere == {event_type.timeline.storage_id}
