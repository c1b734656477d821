"""The log index in DynamoDB."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from threading import Lock
from typing import TypeVar
from uuid import uuid4

from msgspec.structs import replace
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import DeleteError, DoesNotExist, PutError, UpdateError
from pynamodb.expressions.condition import Condition
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from nakadi.engines.common.documents import (
    counted_from_json,
    counted_json,
    following_topic,
    is_signpost,
    latest_plausible_expiry,
    segment_from_json,
    segment_json,
    shard_progress_from_text,
    shard_progress_text,
    signpost_of_deleted_topic,
    topic_from_json,
    topic_json,
    with_changes_of_continued_topic,
)
from nakadi.engines.dynamodb.client import (
    DOCUMENTS,
    LOG_INDEX,
    TURNS,
    RetriedCalls,
    TableAddress,
    condition_failed,
    connected,
    meta_of,
    transaction_of,
)
from nakadi.engines.dynamodb.registry import DocumentItem, add_count, changes_in
from nakadi.model.events import ArchiveLocation, IndexHead, IndexSegment, ShardProgress, Topic, TopicPartition
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS_KIND
from nakadi.ports.registry import ChangeCounters, change_bucket_of

# Items ----------------------------------------------------------------------------------------------------------------


SEGMENTS = "segments#"


class LogIndexItem(Model):
    """Topics and heads are JSON with a revision; a claim has its owner in `body`, and `until` when it holds."""

    Meta = meta_of(LOG_INDEX)  # every index has a model with the full name of its own table

    place = UnicodeAttribute(hash_key=True)
    item = UnicodeAttribute(range_key=True)
    body = UnicodeAttribute()
    revision = NumberAttribute(null=True)
    until = NumberAttribute(null=True)


def topic_place(topic: str) -> str:
    return f"topic#{topic}"


def head_item_key(partition: int) -> str:
    return f"head#{partition:06d}"


def segments_place(topic: str, partition: int) -> str:
    return f"{SEGMENTS}{topic}/{partition}"


def topic_of_segments(place: str) -> str:
    return place.removeprefix(SEGMENTS).rpartition("/")[0]


def segment_item(first: int) -> str:
    return f"{first:020d}"


def claim_place(name: str) -> str:
    return f"claim#{name}"


def stream_place(stream: str) -> str:
    return f"stream#{stream}"


# Log index ------------------------------------------------------------------------------------------------------------


TOPIC = "topic"
CLAIM = "claim"
IDENTITY = "identity"

# One attempt more than there can be others who write to a topic at the same moment and are not housekeeping.
CHANGES_TRIED = 20

Answer = TypeVar("Answer")


class DynamoDbLogIndex:
    def __init__(self, address: TableAddress, attempts: RetriedCalls | None = None) -> None:
        self._items = address.bound(LogIndexItem, LOG_INDEX)
        self._attempts = attempts or RetriedCalls()
        self._closed = False
        self._connecting = Lock()
        self._connection: Connection | None = None
        self._documents = address.bound(DocumentItem, DOCUMENTS)

    def identity(self) -> str:
        self._written(self._items(IDENTITY, IDENTITY, body=uuid4().hex[:16]), LogIndexItem.place.does_not_exist())
        found = self._find_item(IDENTITY, IDENTITY)
        assert found is not None
        return str(found.body)

    # Topics

    def create_topic(self, topic: str, partitions: int) -> None:
        item = self._items(topic_place(topic), TOPIC, body=topic_json(Topic(partitions=partitions)), revision=1)
        self._written(item, LogIndexItem.place.does_not_exist())

    def topic(self, topic: str) -> Topic | None:
        found = self._find_item(topic_place(topic), TOPIC)
        return None if found is None else topic_from_json(found.body)

    def topics(self) -> Sequence[str]:
        found = [each for each in self._scan(LogIndexItem.item == TOPIC) if not is_signpost(topic_from_json(each.body))]
        return sorted(each.place.removeprefix(topic_place("")) for each in found)

    def grow_topic(self, topic: str, partitions: int) -> None:
        self._change(topic, lambda known: replace(known, partitions=max(known.partitions, partitions)))

    def seal_topic(self, topic: str) -> None:
        self._change(topic, lambda known: replace(known, sealed=True), counted=True)

    def continue_topic(self, topic: str, following: str, behind: Sequence[str]) -> None:
        known = self.topic(topic)
        if known is None:
            raise UnknownTopic(topic)
        body = topic_json(following_topic(topic, known, behind))
        item = self._items(topic_place(following), TOPIC, body=body, revision=1)
        self._written(item, LogIndexItem.place.does_not_exist())
        # What is changed about the topic from here on is changed about the following one, too, by those who change it.
        known = self._change(topic, lambda known: replace(known, continued_in=following), counted=True)
        self._change(following, lambda there: with_changes_of_continued_topic(known, there))

    def delete_topic(self, topic: str) -> None:
        known = self.topic(topic)
        if known is not None and known.continued_in and self.topic(known.continued_in) is not None:
            self._change(topic, signpost_of_deleted_topic, counted=True)
        else:
            item = self._items(topic_place(topic), TOPIC)
            self._change_and_count(topic, lambda transaction: transaction.delete(item))
            self._remove_signposts(known.continues if known else None)
        heads = [each.item for each in self._list_items(topic_place(topic)) if each.item != TOPIC]
        for head in heads:
            place = segments_place(topic, int(head.rpartition("#")[2]))
            self._remove_items(place, [each.item for each in self._list_items(place)])
        # They say where segments are, so they are removed last.
        self._remove_items(topic_place(topic), heads)

    def drop_before(self, topic: str, partition: int, oldest: int) -> Sequence[ArchiveLocation]:
        known = self._change(topic, lambda known: _with_oldest(known, partition, oldest))
        place = segments_place(topic, partition)
        before = LogIndexItem.item < segment_item(known.oldest[partition])
        there = [segment_from_json(each.body) for each in self._list_items(place, before)]
        gone = [segment for segment in there if segment.end <= known.oldest[partition]]
        self._remove_items(place, [segment_item(segment.first) for segment in gone])
        return [segment.archived for segment in gone if segment.archived]

    def set_compacted(self, topic: str, partition: int, before: int) -> None:
        def noted(known: Topic) -> Topic:
            grown = max(before, known.compacted.get(partition, 0))
            return replace(known, compacted={**known.compacted, partition: grown})

        self._change(topic, noted)

    def changes(self) -> ChangeCounters:
        return self._call_with_retries(lambda _: changes_in(self._numbers_connection, self._documents))

    # Partitions

    def heads(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, IndexHead]:
        keys = [(topic_place(topic), head_item_key(partition)) for topic, partition in places]
        found = self._call_with_retries(lambda _: list(self._items.batch_get(keys, consistent_read=True)))
        known = {(each.place, each.item): IndexHead(counted_from_json(each.body), int(each.revision)) for each in found}
        return {place: known.get(key, IndexHead()) for place, key in zip(places, keys, strict=True)}

    def extend(self, topic: str, partition: int, expected: int, head: IndexHead, segment: IndexSegment | None) -> bool:
        body = counted_json(head.counted)
        item = self._items(topic_place(topic), head_item_key(partition), body=body, revision=expected + 1)
        unchanged = LogIndexItem.revision == expected if expected else LogIndexItem.place.does_not_exist()
        added = self._segment(topic, partition, segment) if segment is not None else None

        def add(transaction: TransactWrite) -> None:
            transaction.save(item, unchanged)
            if added is not None:
                transaction.save(added)

        return self._transact(add)

    def segment(self, topic: str, partition: int, offset: int) -> IndexSegment | None:
        upto = LogIndexItem.item <= segment_item(offset)
        found = self._list_items(segments_place(topic, partition), upto, last_first=True, limit=1)
        return next((segment_from_json(each.body) for each in found), None)

    def segments(self, topic: str, partition: int, start: int, limit: int) -> Sequence[IndexSegment]:
        found = self._list_items(
            segments_place(topic, partition), LogIndexItem.item >= segment_item(start), limit=limit
        )
        return [segment_from_json(each.body) for each in found]

    def replace(self, topic: str, partition: int, segments: Sequence[IndexSegment], end: int) -> None:
        """The new ones first, the greatest last offset first: at no moment does one end before the next begins."""
        place = segments_place(topic, partition)
        within = LogIndexItem.item.between(segment_item(segments[0].first), segment_item(end - 1))
        old = {each.item for each in self._list_items(place, within)}
        for segment in reversed(segments):
            self._written(self._segment(topic, partition, segment), None)
        self._remove_items(place, sorted(old - {segment_item(segment.first) for segment in segments}))

    def referenced_archive_keys(self) -> Collection[str]:
        topics = set(self.topics())
        found: set[str] = set()
        for each in self._scan(LogIndexItem.place.startswith(SEGMENTS)):
            archived = segment_from_json(each.body).archived
            if archived is not None and topic_of_segments(each.place) in topics:
                found.add(archived.key)
        return found

    # Claims and progress

    def claim(self, name: str, owner: str, seconds: float) -> bool:
        now = time.time()
        over = (LogIndexItem.until < now) | (LogIndexItem.until > latest_plausible_expiry(now, seconds))
        free = LogIndexItem.place.does_not_exist() | (LogIndexItem.body == owner) | over
        return self._written(self._items(claim_place(name), CLAIM, body=owner, until=now + seconds), free)

    def release(self, name: str, owner: str) -> None:
        def attempt(_: bool) -> None:
            try:
                self._items(claim_place(name), CLAIM).delete(LogIndexItem.body == owner)
            except DeleteError as error:
                if not condition_failed(error):
                    raise

        self._call_with_retries(attempt)

    def progress(self, stream: str) -> Mapping[str, ShardProgress]:
        return {each.item: shard_progress_from_text(each.body) for each in self._list_items(stream_place(stream))}

    def set_shard_progress(self, stream: str, shard: str, progress: ShardProgress) -> None:
        body = shard_progress_text(progress)
        behind = LogIndexItem.place.does_not_exist() | (LogIndexItem.body < body)
        self._written(self._items(stream_place(stream), shard, body=body), behind)

    def close(self) -> None:
        with self._connecting:
            self._closed = True
            if self._connection is not None:
                self._connection.client.close()
        if "_numbers_connection" in vars(self):
            self._numbers_connection.client.close()

    @cached_property
    def _numbers_connection(self) -> Connection:
        """Most processes never need it: where the registry has the same numbers, they ask the registry."""
        return connected(self._documents)

    # Items

    def _open_connection(self) -> Connection:
        """The connection, made with the first call: a function that only publishes opens the index and asks nothing."""
        with self._connecting:
            if self._closed:
                raise Unavailable("The log index is closed.")
            if self._connection is None:
                self._connection = connected(self._items)
            return self._connection

    def _call_with_retries(self, attempt: Callable[[bool], Answer], turns: Sequence[float] = ()) -> Answer:
        self._open_connection()
        return self._attempts.at(attempt, turns)

    def _change(self, topic: str, changed: Callable[[Topic], Topic], *, counted: bool = False) -> Topic:
        """Change a topic, again from the beginning when another process changed it."""
        for _ in range(CHANGES_TRIED):
            found = self._find_item(topic_place(topic), TOPIC)
            if found is None:
                raise UnknownTopic(topic)
            known, revision = topic_from_json(found.body), int(found.revision or 0)
            wanted = changed(known)
            item = self._items(topic_place(topic), TOPIC, body=topic_json(wanted), revision=revision + 1)
            if wanted == known or self._replace_topic(topic, item, LogIndexItem.revision == revision, counted=counted):
                return wanted
        raise Unavailable(f"Too many change {topic} at the same time")

    def _replace_topic(self, topic: str, item: LogIndexItem, unchanged: Condition, *, counted: bool) -> bool:
        if counted:
            return self._change_and_count(topic, lambda transaction: transaction.save(item, unchanged))
        return self._written(item, unchanged)

    def _remove_signposts(self, topic: str | None) -> None:
        while topic and (known := self.topic(topic)) and is_signpost(known):
            self._remove_items(topic_place(topic), [TOPIC])
            topic = known.continues

    def _segment(self, topic: str, partition: int, segment: IndexSegment) -> LogIndexItem:
        place, item = segments_place(topic, partition), segment_item(segment.first)
        return self._items(place, item, body=segment_json(segment))

    def _find_item(self, place: str, item: str) -> LogIndexItem | None:
        def attempt(_: bool) -> LogIndexItem | None:
            try:
                return self._items.get(place, item, consistent_read=True)
            except DoesNotExist:
                return None

        return self._call_with_retries(attempt)

    def _written(self, item: LogIndexItem, condition: Condition | None) -> bool:
        """Write an item if a condition holds. An attempt whose answer was lost may make the next one find it broken:
        the caller looks again, or only needed the result.
        """

        def attempt(_: bool) -> bool:
            try:
                item.save(condition)
            except (PutError, UpdateError) as error:
                if not condition_failed(error):
                    raise
                return False
            return True

        return self._call_with_retries(attempt)

    def _change_and_count(self, topic: str, add: Callable[[TransactWrite], None]) -> bool:
        """Make a change of a topic, and count it in the same step, if its condition holds."""

        def add_both(transaction: TransactWrite) -> None:
            add(transaction)
            add_count(transaction, self._documents, [change_bucket_of(TOPICS_KIND, topic)])

        return self._transact(add_both, TURNS)

    def _transact(self, add: Callable[[TransactWrite], None], turns: Sequence[float] = ()) -> bool:
        """Make all changes that are added, or none because a condition does not hold."""
        return self._call_with_retries(transaction_of(add, self._open_connection()), turns)

    def _list_items(
        self, place: str, condition: Condition | None = None, *, last_first: bool = False, limit: int | None = None
    ) -> Iterator[LogIndexItem]:
        results = self._items.query(
            place,
            range_key_condition=condition,
            consistent_read=True,
            scan_index_forward=not last_first,
            limit=limit,
        )
        while (item := self._call_with_retries(lambda _: next(results, None))) is not None:
            yield item

    def _scan(self, condition: Condition) -> Iterator[LogIndexItem]:
        results = self._items.scan(filter_condition=condition, consistent_read=True)
        while (item := self._call_with_retries(lambda _: next(results, None))) is not None:
            yield item

    def _remove_items(self, place: str, items: Sequence[str]) -> None:
        """Remove items, also those that are not there."""
        remaining = iter(items)
        while some := list(islice(remaining, 100)):

            def attempt(_: bool, some: Sequence[str] = some) -> None:
                with self._items.batch_write() as batch:
                    for item in some:
                        batch.delete(self._items(place, item))

            self._call_with_retries(attempt)


def _with_oldest(known: Topic, partition: int, oldest: int) -> Topic:
    return replace(known, oldest={**known.oldest, partition: max(oldest, known.oldest.get(partition, 0))})
