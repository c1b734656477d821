"""The registry and the log index in a SQLite file, for as many processes on one machine as needed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from msgspec.structs import replace

from nakadi.engines.common.documents import (
    CHANGE_COUNTS_KIND,
    changed_buckets,
    check_changes_of_one_write,
    document_after_change,
    document_from_json,
    document_json,
    documents_from_json,
)
from nakadi.engines.common.log_index_json import (
    continuing_topic,
    indexing_state_from_json,
    indexing_state_json,
    is_deleted_topic_placeholder,
    latest_plausible_expiry,
    placeholder_of_deleted_topic,
    segment_from_document,
    segment_from_json,
    segment_json,
    shard_progress_from_text,
    shard_progress_text,
    topic_from_json,
    topic_json,
    with_changes_of_continued_topic,
)
from nakadi.engines.sqlite.file import WRITE_TIMEOUT_SECONDS, SqliteFile
from nakadi.model.events import TopicPartition
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexSegment, ShardProgress, Topic
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS_KIND
from nakadi.ports.registry import (
    ABSENT_REVISION,
    ChangeCounters,
    Document,
    DocumentChange,
    RemoveDocument,
    change_bucket,
)

# The result is one row, however many documents there are, because SQLite's binding lets other threads run at every row.
# There is one lower bound, because SQLite looks up only one: with `key >= :prefix AND key > :after`, it would read all
# documents up to `after`, and the time for all pages of a long list would grow with the square of their number.
LIST_DOCUMENTS = """
    SELECT '[' || coalesce(group_concat(entry), '') || ']' FROM (
        SELECT entry FROM documents
        WHERE kind = :kind AND key >= max(:prefix, :after) AND +key > :after AND (:end IS NULL OR key < :end)
        ORDER BY key LIMIT :limit)
"""

PUT_DOCUMENT = """
    INSERT INTO documents (kind, key, revision, entry) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (kind, key) DO UPDATE SET revision = ?3, entry = ?4
"""


# The change counts are in the table of documents: files of older versions have this table, and older brokers ignore the
# counts.
COUNT_CHANGE = """
    INSERT INTO documents (kind, key, revision, entry) VALUES (?1, ?2, 1, '')
    ON CONFLICT (kind, key) DO UPDATE SET revision = revision + 1
"""

SELECT_CHANGE_COUNTS = "SELECT json_group_object(key, revision) FROM documents WHERE kind = ?"


class SqliteRegistry:
    def __init__(self, path: Path, *, patience: float = WRITE_TIMEOUT_SECONDS) -> None:
        self._file = SqliteFile(path, patience=patience)

    def get(self, kind: str, key: str) -> Document | None:
        with self._file.read_connection() as connection:
            found = connection.execute("SELECT entry FROM documents WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return document_from_json(found[0]) if found else None

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        wanted = {
            "kind": kind,
            "prefix": prefix,
            "after": after,
            "end": _first_text_after_prefix(prefix),
            "limit": -1 if limit is None else limit,
        }
        with self._file.read_connection() as connection:
            (found,) = connection.execute(LIST_DOCUMENTS, wanted).fetchone()
        return documents_from_json(found)

    def write(self, *changes: DocumentChange) -> None:
        check_changes_of_one_write(changes)
        with self._file.write_transaction() as connection:
            for change in changes:
                _apply_change(connection, change)
            increment_change_counters(connection, changed_buckets(changes))

    def change_counters(self) -> ChangeCounters:
        with self._file.read_connection() as connection:
            return change_counts(connection)

    def close(self) -> None:
        self._file.close()


def _apply_change(connection: sqlite3.Connection, change: DocumentChange) -> None:
    partition = (change.kind, change.key)
    found = connection.execute("SELECT revision FROM documents WHERE kind = ? AND key = ?", partition).fetchone()
    document = document_after_change(change, found[0] if found else ABSENT_REVISION)
    if document is not None:
        connection.execute(PUT_DOCUMENT, (*partition, document.revision, document_json(document).decode()))
    elif isinstance(change, RemoveDocument):
        connection.execute("DELETE FROM documents WHERE kind = ? AND key = ?", partition)


def increment_change_counters(connection: sqlite3.Connection, buckets: Collection[int]) -> None:
    connection.executemany(COUNT_CHANGE, [(CHANGE_COUNTS_KIND, str(bucket)) for bucket in buckets])


def change_counts(connection: sqlite3.Connection) -> ChangeCounters:
    (found,) = connection.execute(SELECT_CHANGE_COUNTS, (CHANGE_COUNTS_KIND,)).fetchone()
    return ChangeCounters({int(bucket): number for bucket, number in orjson.loads(found).items()})


def _first_text_after_prefix(prefix: str) -> str | None:
    """The least text that is greater than all texts with this prefix; None if there is none."""
    for length in range(len(prefix), 0, -1):
        point = ord(prefix[length - 1])
        if point < 0x10FFFF:
            # No stored text contains a surrogate.
            return prefix[: length - 1] + chr(0xE000 if point == 0xD7FF else point + 1)
    return None


SELECT_HEAD = "SELECT body, revision FROM log_index_heads WHERE topic = ? AND partition = ?"

PUT_SEGMENT = (
    "INSERT OR REPLACE INTO log_index_segments (topic, partition, first, body, archived) VALUES (?, ?, ?, ?, ?)"
)

# The result is one row, however many segments there are, because SQLite's binding lets other threads run at every row.
SELECT_SEGMENTS = """
    SELECT '[' || coalesce(group_concat(body), '') || ']' FROM (
        SELECT body FROM log_index_segments WHERE topic = ? AND partition = ? AND first >= ? ORDER BY first LIMIT ?)
"""

SELECT_SEGMENTS_BEFORE = """
    SELECT '[' || coalesce(group_concat(body), '') || ']'
    FROM log_index_segments WHERE topic = ? AND partition = ? AND first < ?
"""

PUT_CLAIM = """
    INSERT INTO log_index_claims (name, owner, until) VALUES (?1, ?2, ?3)
    ON CONFLICT (name) DO UPDATE SET owner = ?2, until = ?3 WHERE owner = ?2 OR until < ?4 OR until > ?5
"""

PUT_SHARD_PROGRESS = """
    INSERT INTO log_index_progress (stream, shard, sequence) VALUES (?1, ?2, ?3)
    ON CONFLICT (stream, shard) DO UPDATE SET sequence = ?3 WHERE sequence < ?3
"""

# Placeholders of deleted topics are left out: they have no partitions, and name the topic that continues them.
SELECT_TOPIC_NAMES = "SELECT json_group_array(topic) FROM log_index_topics WHERE NOT (body LIKE '{\"partitions\":0,%')"

SELECT_REFERENCED_OBJECTS = """
    SELECT json_group_array(DISTINCT archived) FROM log_index_segments
    WHERE archived IS NOT NULL
    AND topic IN (SELECT topic FROM log_index_topics WHERE NOT (body LIKE '{\"partitions\":0,%'))
"""


class SqliteLogIndex:
    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path)

    def identity(self) -> str:
        return str(self._query_row("SELECT identity FROM log_index")[0])

    # Topics

    def create_topic(self, topic: str, partitions: int) -> None:
        with self._file.write_transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO log_index_topics (topic, body) VALUES (?, ?)",
                (topic, topic_json(Topic(partitions=partitions))),
            )

    def topic(self, topic: str) -> Topic | None:
        with self._file.read_connection() as connection:
            return _read_topic(connection, topic)

    def topic_names(self) -> Sequence[str]:
        return _texts_from_json(self._query_row(SELECT_TOPIC_NAMES)[0])

    def grow_topic(self, topic: str, partitions: int) -> None:
        self._change_topic(topic, lambda known: replace(known, partitions=max(known.partitions, partitions)))

    def seal_topic(self, topic: str) -> None:
        self._change_topic(topic, lambda known: replace(known, sealed=True), [change_bucket(TOPICS_KIND, topic)])

    def create_next_topic(self, topic: str, next_topic: str, begun_after_gaps: Sequence[str]) -> None:
        with self._file.write_transaction() as connection:
            known = _read_topic(connection, topic)
            if known is None:
                raise UnknownTopic(topic)
            there = _read_topic(connection, next_topic) or continuing_topic(topic, known, begun_after_gaps)
            _put_topic(connection, topic, replace(known, continued_in=next_topic))
            _put_topic(connection, next_topic, with_changes_of_continued_topic(known, there))
            increment_change_counters(connection, [change_bucket(TOPICS_KIND, topic)])

    def delete_topic(self, topic: str) -> None:
        with self._file.write_transaction() as connection:
            increment_change_counters(connection, [change_bucket(TOPICS_KIND, topic)])
            gone = _read_topic(connection, topic)
            connection.execute("DELETE FROM log_index_topics WHERE topic = ?", (topic,))
            if gone is not None and gone.continued_in and _read_topic(connection, gone.continued_in):
                _put_topic(connection, topic, placeholder_of_deleted_topic(gone))
            elif gone is not None:
                _remove_topic_placeholders(connection, gone.continues)
            connection.execute("DELETE FROM log_index_heads WHERE topic = ?", (topic,))
            connection.execute("DELETE FROM log_index_segments WHERE topic = ?", (topic,))

    def drop_segments_before(self, topic: str, partition: int, oldest_offset: int) -> Sequence[ArchiveLocation]:
        known = self._change_topic(topic, lambda known: _topic_with_oldest_offset(known, partition, oldest_offset))
        lowest = known.oldest[partition]
        (found,) = self._query_row(SELECT_SEGMENTS_BEFORE, (topic, partition, lowest))
        gone = [segment for segment in _segments_from_json(found) if segment.end_offset <= lowest]
        with self._file.write_transaction() as connection:
            connection.executemany(
                "DELETE FROM log_index_segments WHERE topic = ? AND partition = ? AND first = ?",
                [(topic, partition, segment.first_offset) for segment in gone],
            )
        return [segment.location for segment in gone if segment.location]

    def set_compacted_until(self, topic: str, partition: int, offset: int) -> None:
        def with_growth(known: Topic) -> Topic:
            grown = max(offset, known.compacted.get(partition, 0))
            return replace(known, compacted={**known.compacted, partition: grown})

        self._change_topic(topic, with_growth)

    def change_counters(self) -> ChangeCounters:
        with self._file.read_connection() as connection:
            return change_counts(connection)

    # Partitions

    def index_heads(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, IndexHead]:
        with self._file.read_connection() as connection:
            return {partition: _read_head(connection, *partition) for partition in partitions}

    def advance_head(
        self, topic: str, partition: int, expected_revision: int, head: IndexHead, segment: IndexSegment | None
    ) -> bool:
        with self._file.write_transaction() as connection:
            if _read_head(connection, topic, partition).revision != expected_revision:
                return False
            connection.execute(
                "INSERT OR REPLACE INTO log_index_heads (topic, partition, revision, body) VALUES (?, ?, ?, ?)",
                (topic, partition, expected_revision + 1, indexing_state_json(head.state)),
            )
            if segment is not None:
                _put_segments(connection, topic, partition, [segment])
            return True

    def segment_at_or_before(self, topic: str, partition: int, offset: int) -> IndexSegment | None:
        found = self._query_row_or_none(
            "SELECT body FROM log_index_segments WHERE topic = ? AND partition = ? AND first <= ?"
            " ORDER BY first DESC LIMIT 1",
            (topic, partition, offset),
        )
        return segment_from_json(found[0]) if found else None

    def segments_from(self, topic: str, partition: int, start: int, limit: int) -> Sequence[IndexSegment]:
        (found,) = self._query_row(SELECT_SEGMENTS, (topic, partition, start, limit))
        return _segments_from_json(found)

    def replace_segments(self, topic: str, partition: int, segments: Sequence[IndexSegment], end: int) -> None:
        with self._file.write_transaction() as connection:
            connection.execute(
                "DELETE FROM log_index_segments WHERE topic = ? AND partition = ? AND first >= ? AND first < ?",
                (topic, partition, segments[0].first_offset, end),
            )
            _put_segments(connection, topic, partition, segments)

    def referenced_archive_keys(self) -> Collection[str]:
        (found,) = self._query_row(SELECT_REFERENCED_OBJECTS)
        return frozenset(_texts_from_json(found))

    # Claims and progress

    def claim(self, name: str, owner: str, seconds: float) -> bool:
        now = time.time()
        with self._file.write_transaction() as connection:
            return (
                connection.execute(
                    PUT_CLAIM, (name, owner, now + seconds, now, latest_plausible_expiry(now, seconds))
                ).rowcount
                > 0
            )

    def release_claim(self, name: str, owner: str) -> None:
        with self._file.write_transaction() as connection:
            connection.execute("DELETE FROM log_index_claims WHERE name = ? AND owner = ?", (name, owner))

    def shard_progresses(self, stream: str) -> Mapping[str, ShardProgress]:
        with self._file.read_connection() as connection:
            found = connection.execute("SELECT shard, sequence FROM log_index_progress WHERE stream = ?", (stream,))
            return {shard: shard_progress_from_text(body) for shard, body in found.fetchall()}

    def advance_shard_progress(self, stream: str, shard: str, progress: ShardProgress) -> None:
        with self._file.write_transaction() as connection:
            connection.execute(PUT_SHARD_PROGRESS, (stream, shard, shard_progress_text(progress)))

    def close(self) -> None:
        self._file.close()

    def _change_topic(self, topic: str, change: Callable[[Topic], Topic], counted_buckets: Sequence[int] = ()) -> Topic:
        with self._file.write_transaction() as connection:
            increment_change_counters(connection, counted_buckets)
            known = _read_topic(connection, topic)
            if known is None:
                raise UnknownTopic(topic)
            wanted = change(known)
            connection.execute("UPDATE log_index_topics SET body = ? WHERE topic = ?", (topic_json(wanted), topic))
        return wanted

    def _query_row(self, statement: str, values: Sequence[object] = ()) -> Sequence[Any]:
        found = self._query_row_or_none(statement, values)
        assert found is not None
        return found

    def _query_row_or_none(self, statement: str, values: Sequence[object]) -> Sequence[Any] | None:
        with self._file.read_connection() as connection:
            found: Sequence[Any] | None = connection.execute(statement, values).fetchone()
        return found


def _read_topic(connection: sqlite3.Connection, topic: str) -> Topic | None:
    found = connection.execute("SELECT body FROM log_index_topics WHERE topic = ?", (topic,)).fetchone()
    return topic_from_json(found[0]) if found else None


def _put_topic(connection: sqlite3.Connection, topic: str, known: Topic) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO log_index_topics (topic, body) VALUES (?, ?)", (topic, topic_json(known))
    )


def _remove_topic_placeholders(connection: sqlite3.Connection, topic: str | None) -> None:
    while topic and (known := _read_topic(connection, topic)) and is_deleted_topic_placeholder(known):
        connection.execute("DELETE FROM log_index_topics WHERE topic = ?", (topic,))
        topic = known.continues


def _read_head(connection: sqlite3.Connection, topic: str, partition: int) -> IndexHead:
    found = connection.execute(SELECT_HEAD, (topic, partition)).fetchone()
    return IndexHead(indexing_state_from_json(found[0]), found[1]) if found else IndexHead()


def _put_segments(connection: sqlite3.Connection, topic: str, partition: int, segments: Sequence[IndexSegment]) -> None:
    connection.executemany(
        PUT_SEGMENT,
        [
            (topic, partition, each.first_offset, segment_json(each), each.location.key if each.location else None)
            for each in segments
        ],
    )


def _topic_with_oldest_offset(topic: Topic, partition: int, oldest: int) -> Topic:
    return replace(topic, oldest={**topic.oldest, partition: max(oldest, topic.oldest.get(partition, 0))})


def _segments_from_json(text: str) -> list[IndexSegment]:
    return [segment_from_document(found) for found in orjson.loads(text)]


def _texts_from_json(text: str) -> list[str]:
    return [str(each) for each in orjson.loads(text)]
