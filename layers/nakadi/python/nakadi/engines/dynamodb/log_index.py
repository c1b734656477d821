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

from nakadi.engines.common.log_index_json import (
    continuing_topic,
    indexing_state_from_json,
    indexing_state_json,
    is_deleted_topic_placeholder,
    latest_plausible_expiry,
    placeholder_of_deleted_topic,
    segment_from_json,
    segment_json,
    shard_progress_from_text,
    shard_progress_text,
    topic_from_json,
    topic_json,
    with_changes_of_continued_topic,
)
from nakadi.engines.dynamodb.client import (
    CONFLICT_RETRY_PAUSES_SECONDS,
    CallRetryPolicy,
    is_condition_failure,
    transaction_attempt,
)
from nakadi.engines.dynamodb.log_index_keys import (
    IDENTITY_KEY,
    SEGMENTS_KEY_PREFIX,
    claim_key,
    head_sort_key,
    segment_sort_key,
    segments_key,
    stream_key,
    topic_in_segments_key,
    topic_key,
)
from nakadi.engines.dynamodb.registry import DocumentItem, add_change_counts, read_change_counters
from nakadi.engines.dynamodb.table_address import TableAddress, connect, model_meta
from nakadi.engines.dynamodb.tables import DOCUMENTS_TABLE, LOG_INDEX_TABLE
from nakadi.model.events import TopicPartition
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexSegment, ShardProgress, Topic
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS_KIND
from nakadi.ports.registry import ChangeCounters, change_bucket


class LogIndexItem(Model):
    """Topics and heads are JSON with a revision; a claim has its owner in `body`."""

    Meta = model_meta(LOG_INDEX_TABLE)  # every index has a model with the full name of its table

    partition_key = UnicodeAttribute(hash_key=True, attr_name="place")
    sort_key = UnicodeAttribute(range_key=True, attr_name="item")
    body = UnicodeAttribute()
    revision = NumberAttribute(null=True)
    expires_at = NumberAttribute(null=True, attr_name="until")


TOPIC_SORT_KEY = "topic"
CLAIM_SORT_KEY = "claim"

# How often a change of a topic is attempted. There are fewer simultaneous writers of a topic, not counting
# housekeeping.
MAX_CHANGE_ATTEMPTS = 20

T = TypeVar("T")


class DynamoDbLogIndex:
    def __init__(self, address: TableAddress, attempts: CallRetryPolicy | None = None) -> None:
        self._items = address.bind_model(LogIndexItem, LOG_INDEX_TABLE)
        self._attempts = attempts or CallRetryPolicy()
        self._closed = False
        self._connection_lock = Lock()
        self._connection: Connection | None = None
        self._registry_items = address.bind_model(DocumentItem, DOCUMENTS_TABLE)

    def identity(self) -> str:
        self._write_item(
            self._items(IDENTITY_KEY, IDENTITY_KEY, body=uuid4().hex[:16]), LogIndexItem.partition_key.does_not_exist()
        )
        found = self._find_item(IDENTITY_KEY, IDENTITY_KEY)
        assert found is not None
        return str(found.body)

    # Topics

    def create_topic(self, topic: str, partitions: int) -> None:
        item = self._items(topic_key(topic), TOPIC_SORT_KEY, body=topic_json(Topic(partitions=partitions)), revision=1)
        self._write_item(item, LogIndexItem.partition_key.does_not_exist())

    def topic(self, topic: str) -> Topic | None:
        found = self._find_item(topic_key(topic), TOPIC_SORT_KEY)
        return None if found is None else topic_from_json(found.body)

    def topic_names(self) -> Sequence[str]:
        found = [
            each
            for each in self._scan_items(LogIndexItem.sort_key == TOPIC_SORT_KEY)
            if not is_deleted_topic_placeholder(topic_from_json(each.body))
        ]
        return sorted(each.partition_key.removeprefix(topic_key("")) for each in found)

    def grow_topic(self, topic: str, partitions: int) -> None:
        self._change_topic(topic, lambda known: replace(known, partitions=max(known.partitions, partitions)))

    def seal_topic(self, topic: str) -> None:
        self._change_topic(topic, lambda known: replace(known, sealed=True), count_change=True)

    def create_next_topic(self, topic: str, next_topic: str, begun_after_gaps: Sequence[str]) -> None:
        known = self.topic(topic)
        if known is None:
            raise UnknownTopic(topic)
        body = topic_json(continuing_topic(topic, known, begun_after_gaps))
        item = self._items(topic_key(next_topic), TOPIC_SORT_KEY, body=body, revision=1)
        self._write_item(item, LogIndexItem.partition_key.does_not_exist())
        # From now on, each change of this topic is also made to the topic that continues it.
        known = self._change_topic(topic, lambda known: replace(known, continued_in=next_topic), count_change=True)
        self._change_topic(next_topic, lambda there: with_changes_of_continued_topic(known, there))

    def delete_topic(self, topic: str) -> None:
        known = self.topic(topic)
        if known is not None and known.continued_in and self.topic(known.continued_in) is not None:
            self._change_topic(topic, placeholder_of_deleted_topic, count_change=True)
        else:
            item = self._items(topic_key(topic), TOPIC_SORT_KEY)
            self._change_and_count(topic, lambda transaction: transaction.delete(item))
            self._remove_topic_placeholders(known.continues if known else None)
        heads = [each.sort_key for each in self._list_items(topic_key(topic)) if each.sort_key != TOPIC_SORT_KEY]
        for head in heads:
            partition_key = segments_key(topic, int(head.rpartition("#")[2]))
            self._remove_items(partition_key, [each.sort_key for each in self._list_items(partition_key)])
        # Heads are removed last, because they say which partitions have segments.
        self._remove_items(topic_key(topic), heads)

    def drop_segments_before(self, topic: str, partition: int, oldest_offset: int) -> Sequence[ArchiveLocation]:
        known = self._change_topic(topic, lambda known: _topic_with_oldest_offset(known, partition, oldest_offset))
        partition_key = segments_key(topic, partition)
        before = LogIndexItem.sort_key < segment_sort_key(known.oldest[partition])
        there = [segment_from_json(each.body) for each in self._list_items(partition_key, before)]
        gone = [segment for segment in there if segment.end_offset <= known.oldest[partition]]
        self._remove_items(partition_key, [segment_sort_key(segment.first_offset) for segment in gone])
        return [segment.location for segment in gone if segment.location]

    def set_compacted_until(self, topic: str, partition: int, offset: int) -> None:
        def with_compacted(known: Topic) -> Topic:
            grown = max(offset, known.compacted.get(partition, 0))
            return replace(known, compacted={**known.compacted, partition: grown})

        self._change_topic(topic, with_compacted)

    def change_counters(self) -> ChangeCounters:
        return self._call_with_retries(lambda _: read_change_counters(self._registry_connection, self._registry_items))

    # Partitions

    def index_heads(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, IndexHead]:
        keys = [(topic_key(topic), head_sort_key(partition)) for topic, partition in partitions]
        found = self._call_with_retries(lambda _: list(self._items.batch_get(keys, consistent_read=True)))
        known = {
            (each.partition_key, each.sort_key): IndexHead(indexing_state_from_json(each.body), int(each.revision))
            for each in found
        }
        return {partition: known.get(key, IndexHead()) for partition, key in zip(partitions, keys, strict=True)}

    def advance_head(
        self, topic: str, partition: int, expected_revision: int, head: IndexHead, segment: IndexSegment | None
    ) -> bool:
        body = indexing_state_json(head.state)
        item = self._items(topic_key(topic), head_sort_key(partition), body=body, revision=expected_revision + 1)
        unchanged = (
            LogIndexItem.revision == expected_revision
            if expected_revision
            else LogIndexItem.partition_key.does_not_exist()
        )
        added = self._segment_item(topic, partition, segment) if segment is not None else None

        def add(transaction: TransactWrite) -> None:
            transaction.save(item, unchanged)
            if added is not None:
                transaction.save(added)

        return self._transact(add)

    def segment_at_or_before(self, topic: str, partition: int, offset: int) -> IndexSegment | None:
        upto = LogIndexItem.sort_key <= segment_sort_key(offset)
        found = self._list_items(segments_key(topic, partition), upto, last_first=True, limit=1)
        return next((segment_from_json(each.body) for each in found), None)

    def segments_from(self, topic: str, partition: int, start: int, limit: int) -> Sequence[IndexSegment]:
        found = self._list_items(
            segments_key(topic, partition), LogIndexItem.sort_key >= segment_sort_key(start), limit=limit
        )
        return [segment_from_json(each.body) for each in found]

    def replace_segments(self, topic: str, partition: int, segments: Sequence[IndexSegment], end: int) -> None:
        """Write the new segments before removing the old ones, in descending order of their last offsets, so that there
        is never a gap between two segments.
        """
        partition_key = segments_key(topic, partition)
        within = LogIndexItem.sort_key.between(segment_sort_key(segments[0].first_offset), segment_sort_key(end - 1))
        old = {each.sort_key for each in self._list_items(partition_key, within)}
        for segment in reversed(segments):
            self._write_item(self._segment_item(topic, partition, segment), None)
        self._remove_items(
            partition_key, sorted(old - {segment_sort_key(segment.first_offset) for segment in segments})
        )

    def referenced_archive_keys(self) -> Collection[str]:
        topics = set(self.topic_names())
        found: set[str] = set()
        for each in self._scan_items(LogIndexItem.partition_key.startswith(SEGMENTS_KEY_PREFIX)):
            archived = segment_from_json(each.body).location
            if archived is not None and topic_in_segments_key(each.partition_key) in topics:
                found.add(archived.key)
        return found

    # Claims and progress

    def claim(self, name: str, owner: str, seconds: float) -> bool:
        now = time.time()
        over = (LogIndexItem.expires_at < now) | (LogIndexItem.expires_at > latest_plausible_expiry(now, seconds))
        free = LogIndexItem.partition_key.does_not_exist() | (LogIndexItem.body == owner) | over
        return self._write_item(
            self._items(claim_key(name), CLAIM_SORT_KEY, body=owner, expires_at=now + seconds), free
        )

    def release_claim(self, name: str, owner: str) -> None:
        def attempt(_: bool) -> None:
            try:
                self._items(claim_key(name), CLAIM_SORT_KEY).delete(LogIndexItem.body == owner)
            except DeleteError as error:
                if not is_condition_failure(error):
                    raise

        self._call_with_retries(attempt)

    def shard_progresses(self, stream: str) -> Mapping[str, ShardProgress]:
        return {each.sort_key: shard_progress_from_text(each.body) for each in self._list_items(stream_key(stream))}

    def advance_shard_progress(self, stream: str, shard: str, progress: ShardProgress) -> None:
        body = shard_progress_text(progress)
        behind = LogIndexItem.partition_key.does_not_exist() | (LogIndexItem.body < body)
        self._write_item(self._items(stream_key(stream), shard, body=body), behind)

    def close(self) -> None:
        with self._connection_lock:
            self._closed = True
            if self._connection is not None:
                self._connection.client.close()
        if "_registry_connection" in vars(self):
            self._registry_connection.client.close()

    @cached_property
    def _registry_connection(self) -> Connection:
        """The connection to the registry. Most processes never need it: if it counts the changes of this index too,
        they read the counts through the registry's engine.
        """
        return connect(self._registry_items)

    # Items

    def _open_connection(self) -> Connection:
        """The connection, opened at the first call, because a function that only publishes opens the index and sends no
        request.
        """
        with self._connection_lock:
            if self._closed:
                raise Unavailable("The log index is closed.")
            if self._connection is None:
                self._connection = connect(self._items)
            return self._connection

    def _call_with_retries(self, attempt: Callable[[bool], T], conflict_pauses: Sequence[float] = ()) -> T:
        self._open_connection()
        return self._attempts.call_with_retries(attempt, conflict_pauses)

    def _change_topic(self, topic: str, change: Callable[[Topic], Topic], *, count_change: bool = False) -> Topic:
        """Change a topic; start again if another process changed it."""
        for _ in range(MAX_CHANGE_ATTEMPTS):
            found = self._find_item(topic_key(topic), TOPIC_SORT_KEY)
            if found is None:
                raise UnknownTopic(topic)
            known, revision = topic_from_json(found.body), int(found.revision or 0)
            wanted = change(known)
            item = self._items(topic_key(topic), TOPIC_SORT_KEY, body=topic_json(wanted), revision=revision + 1)
            if wanted == known or self._replace_topic(
                topic, item, LogIndexItem.revision == revision, count_change=count_change
            ):
                return wanted
        raise Unavailable(f"Too many change {topic} at the same time")

    def _replace_topic(self, topic: str, item: LogIndexItem, condition: Condition, *, count_change: bool) -> bool:
        if count_change:
            return self._change_and_count(topic, lambda transaction: transaction.save(item, condition))
        return self._write_item(item, condition)

    def _remove_topic_placeholders(self, topic: str | None) -> None:
        while topic and (known := self.topic(topic)) and is_deleted_topic_placeholder(known):
            self._remove_items(topic_key(topic), [TOPIC_SORT_KEY])
            topic = known.continues

    def _segment_item(self, topic: str, partition: int, segment: IndexSegment) -> LogIndexItem:
        partition_key, item = segments_key(topic, partition), segment_sort_key(segment.first_offset)
        return self._items(partition_key, item, body=segment_json(segment))

    def _find_item(self, partition_key: str, item: str) -> LogIndexItem | None:
        def attempt(_: bool) -> LogIndexItem | None:
            try:
                return self._items.get(partition_key, item, consistent_read=True)
            except DoesNotExist:
                return None

        return self._call_with_retries(attempt)

    def _write_item(self, item: LogIndexItem, condition: Condition | None) -> bool:
        """Write an item if a condition holds. Return whether the condition held. After an attempt whose answer was
        lost, the next attempt may find the condition false because of the first; callers then read the item again, or
        need only that it exists.
        """

        def attempt(_: bool) -> bool:
            try:
                item.save(condition)
            except (PutError, UpdateError) as error:
                if not is_condition_failure(error):
                    raise
                return False
            return True

        return self._call_with_retries(attempt)

    def _change_and_count(self, topic: str, add_change: Callable[[TransactWrite], None]) -> bool:
        """Change a topic and count the change in the same step, if its condition holds."""

        def add_both(transaction: TransactWrite) -> None:
            add_change(transaction)
            add_change_counts(transaction, self._registry_items, [change_bucket(TOPICS_KIND, topic)])

        return self._transact(add_both, CONFLICT_RETRY_PAUSES_SECONDS)

    def _transact(self, add_changes: Callable[[TransactWrite], None], conflict_pauses: Sequence[float] = ()) -> bool:
        """Make all changes that are added, or none because a condition does not hold."""
        return self._call_with_retries(transaction_attempt(add_changes, self._open_connection()), conflict_pauses)

    def _list_items(
        self,
        partition_key: str,
        condition: Condition | None = None,
        *,
        last_first: bool = False,
        limit: int | None = None,
    ) -> Iterator[LogIndexItem]:
        results = self._items.query(
            partition_key,
            range_key_condition=condition,
            consistent_read=True,
            scan_index_forward=not last_first,
            limit=limit,
        )
        while (item := self._call_with_retries(lambda _: next(results, None))) is not None:
            yield item

    def _scan_items(self, condition: Condition) -> Iterator[LogIndexItem]:
        results = self._items.scan(filter_condition=condition, consistent_read=True)
        while (item := self._call_with_retries(lambda _: next(results, None))) is not None:
            yield item

    def _remove_items(self, partition_key: str, items: Sequence[str]) -> None:
        """Remove items, whether they exist or not."""
        remaining = iter(items)
        while some := list(islice(remaining, 100)):

            def attempt(_: bool, some: Sequence[str] = some) -> None:
                with self._items.batch_write() as batch:
                    for item in some:
                        batch.delete(self._items(partition_key, item))

            self._call_with_retries(attempt)


def _topic_with_oldest_offset(topic: Topic, partition: int, oldest: int) -> Topic:
    return replace(topic, oldest={**topic.oldest, partition: max(oldest, topic.oldest.get(partition, 0))})
