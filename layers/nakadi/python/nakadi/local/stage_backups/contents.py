"""Interprets a stage's items: whether the items of the three tables fit each other, and which form they get in a new
stream.

The tables of a running stage are not copied at one moment: first the cursors, then the documents, and then the index,
once it includes everything that was published before. `Contents.problem` describes any remaining inconsistency.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from nakadi.engines.common.log_index_json import (
    indexing_state_from_json,
    indexing_state_json,
    segment_from_json,
    topic_from_json,
    topic_json,
)
from nakadi.engines.dynamodb.coordination_table import (
    CHANGES_KEY,
    LEASES_KEY,
    OFFSET_SORT_KEY_PREFIX,
    CoordinationItem,
    offset_from_item,
    partition_in_sort_key,
)
from nakadi.engines.dynamodb.log_index import TOPIC_SORT_KEY
from nakadi.engines.dynamodb.log_index_keys import SEGMENTS_KEY_PREFIX, head_sort_key, topic_key
from nakadi.engines.dynamodb.registry import DocumentItem, document_from_item
from nakadi.event_types.documents import event_type_from_document
from nakadi.event_types.repository import EVENT_TYPES_KIND
from nakadi.event_types.storages import STORAGES_KIND
from nakadi.event_types.table_states import TABLE_STATES_KIND, table_state_from_body
from nakadi.local.stage_backups.place import Item
from nakadi.model.event_type import EventType, Position, StorageType, Timeline
from nakadi.model.events import TopicPartition
from nakadi.model.log_index import Topic
from nakadi.model.subscription import EventTypePartition


class Contents:
    """What decides whether a copy is consistent, collected item by item, in the order of copying."""

    def __init__(self) -> None:
        self.event_types: dict[str, EventType] = {}
        self.storages_elsewhere: set[str] = set()
        self.archive_keys: set[str] = set()
        self._topics: dict[str, Topic] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._covered: dict[TopicPartition, int] = {}
        self._cursors: dict[EventTypePartition, Position] = {}
        self._first_problem: str | None = None

    def add_coordination_item(self, item: Item) -> None:
        sort_key = item["item"]["S"]
        if sort_key.startswith(OFFSET_SORT_KEY_PREFIX):
            partition = partition_in_sort_key(sort_key)
            position = offset_from_item(CoordinationItem.from_raw_data(dict(item))).position
            self._cursors[partition] = max(position, self._cursors.get(partition, position))

    def add_document(self, item: Item) -> None:
        kind = item["kind"]["S"]
        if kind == EVENT_TYPES_KIND:
            event_type = event_type_from_document(document_from_item(DocumentItem.from_raw_data(dict(item))))
            self.event_types[event_type.name] = event_type
        elif kind == STORAGES_KIND:
            found = document_from_item(DocumentItem.from_raw_data(dict(item)))
            if found.body.get("type") == StorageType.KAFKA:
                self.storages_elsewhere.add(found.key)

    def add_topic(self, name: str, items: Sequence[Item]) -> Topic | None:
        """Add a topic and its heads, and return the topic; None if there is no such topic."""
        by_sort_key = {item["item"]["S"]: item for item in items}
        if TOPIC_SORT_KEY not in by_sort_key:
            return None
        self._topics[name] = topic = topic_from_json(by_sort_key[TOPIC_SORT_KEY]["body"]["S"])
        for partition in range(topic.partitions):
            head = by_sort_key.get(head_sort_key(partition))
            end = indexing_state_from_json(head["body"]["S"]).next_offset if head else 0
            self._ends[name, partition] = end
            self._covered[name, partition] = topic.oldest.get(partition, 0)
        return topic

    def add_segment(self, partition: TopicPartition, item: Item) -> bool:
        """Add a segment; those of a partition come in order. Returns False for a segment that was written after the
        head was copied.
        """
        segment = segment_from_json(item["body"]["S"])
        if segment.first_offset >= self._ends[partition]:
            return False
        covered = self._covered[partition]
        if segment.first_offset > covered:
            self._note_problem(_gap_message(partition, covered, segment.first_offset))
        if segment.location is None:
            self._note_problem(f"Offsets from {segment.first_offset} of {_text(partition)} are not archived.")
        else:
            self.archive_keys.add(segment.location.key)
        self._covered[partition] = max(covered, segment.end_offset)
        return True

    def add_index_items(self, partition_key: str, items: Sequence[Item]) -> None:
        """Add the items with one partition key, in the order in which they were copied."""
        if partition_key.startswith(topic_key("")):
            self.add_topic(partition_key.removeprefix(topic_key("")), items)
            return
        topic, _, partition = partition_key.removeprefix(SEGMENTS_KEY_PREFIX).rpartition("/")
        for item in items:
            self.add_segment((topic, int(partition)), item)

    def topics(self) -> Iterator[str]:
        """The topics that event types have now."""
        for event_type in self.event_types.values():
            for timeline in _timelines(event_type):
                if not timeline.deleted and timeline.storage_id not in self.storages_elsewhere:
                    yield timeline.topic

    @property
    def problem(self) -> str | None:
        """Why this is not a consistent copy of a stage; None if it is one."""
        if self._first_problem:
            return self._first_problem
        for partition, end in self._ends.items():
            if self._covered[partition] < end:
                return _gap_message(partition, self._covered[partition], end)
        for event_type in self.event_types.values():
            if problem := self._problem_of_event_type(event_type):
                return problem
        for consumed, position in self._cursors.items():
            if self._is_after_end(consumed, position):
                where = f"partition {consumed.partition} of {consumed.event_type}"
                return f"A cursor of {where} is at {position}, after the last event."
        return None

    def _problem_of_event_type(self, event_type: EventType) -> str | None:
        current = event_type.timeline
        if current.storage_id in self.storages_elsewhere:
            return None
        topic = self._topics.get(current.topic)
        if topic is None:
            return f"The topic of {event_type.name} is not in the index."
        if topic.sealed and event_type.switching_to is None:
            return f"{event_type.name} has moved to another timeline meanwhile."
        if topic.partitions < current.partitions:
            return f"The topic of {event_type.name} has only {topic.partitions} partitions."
        return None

    def _is_after_end(self, partition: EventTypePartition, position: Position) -> bool:
        event_type = self.event_types.get(partition.event_type)
        timelines = event_type.timelines if event_type else ()
        topic = next((each.topic for each in timelines if each.order == position.timeline), "")
        end = self._ends.get((topic, int(partition.partition)))
        return end is not None and position.offset >= end

    def _note_problem(self, problem: str) -> None:
        self._first_problem = self._first_problem or problem


def is_lasting(item: Item) -> bool:
    """Whether an item of the coordination outlasts its processes: leases and reports of changes do not."""
    return item["place"]["S"] not in (LEASES_KEY, CHANGES_KEY)


def is_restored(document: Item, tables: Collection[str]) -> bool:
    """Whether a document is restored: the state of an Iceberg table is, if the table is among the restored `tables`."""
    if document["kind"]["S"] != TABLE_STATES_KIND:
        return True
    found = document_from_item(DocumentItem.from_raw_data(dict(document)))
    return table_state_from_body(found.body).table_name in tables


def topic_in_new_stream(items: Sequence[Item]) -> Iterator[Item]:
    """A topic and its heads as they are in a stream that has none of its records.

    Numbering continues where it was, with the first record of the new stream. Earlier events are only in the archive,
    which readers know from `compacted`.
    """
    ends: dict[int, int] = {}
    for item in items:
        if item["item"]["S"] != TOPIC_SORT_KEY:
            state = indexing_state_from_json(item["body"]["S"])
            ends[int(item["item"]["S"].rpartition("#")[2])] = state.next_offset
            begun = replace(state, last_position=None, unfinished_parts=())
            yield {**item, "body": {"S": indexing_state_json(begun)}}
    for item in items:
        if item["item"]["S"] == TOPIC_SORT_KEY:
            topic = topic_from_json(item["body"]["S"])
            yield {**item, "body": {"S": topic_json(replace(topic, compacted=ends))}}


def _timelines(event_type: EventType) -> Iterator[Timeline]:
    yield from event_type.timelines
    if event_type.switching_to is not None:
        yield event_type.switching_to


def _gap_message(partition: TopicPartition, start: int, end: int) -> str:
    return f"The index lacks offsets {start} to {end - 1} of {_text(partition)}."


def _text(partition: TopicPartition) -> str:
    return f"{partition[0]}/{partition[1]}"
