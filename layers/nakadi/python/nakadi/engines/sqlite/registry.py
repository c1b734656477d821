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
    NUMBERS,
    as_open_as,
    check_changes_of_one_write,
    counted_body,
    counted_buckets,
    counted_in,
    document_in,
    documents_in,
    entry_of,
    following_topic,
    is_signpost,
    last_honest,
    outcome_of,
    progress_body,
    progress_in,
    segment_body,
    segment_in,
    segment_of,
    signpost,
    topic_body,
    topic_in,
)
from nakadi.engines.sqlite.file import PATIENCE, SqliteFile
from nakadi.model.events import Head, Location, Progress, Segment, Topic
from nakadi.ports.event_log import UnknownTopic
from nakadi.ports.log_index import TOPICS
from nakadi.ports.registry import ABSENT, Change, Changes, Document, Remove, bucket_of

# One row, however many documents there are: SQLite's binding lets other threads run at every row.
LIST = """
    SELECT '[' || coalesce(group_concat(entry), '') || ']' FROM (
        SELECT entry FROM documents
        WHERE kind = :kind AND key >= :prefix AND key > :after AND (:end IS NULL OR key < :end)
        ORDER BY key LIMIT :limit)
"""

PUT = """
    INSERT INTO documents (kind, key, revision, entry) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (kind, key) DO UPDATE SET revision = ?3, entry = ?4
"""


# Numbers lie among the documents: a file of an older version has room for them, and an older broker passes them over.
COUNT = """
    INSERT INTO documents (kind, key, revision, entry) VALUES (?1, ?2, 1, '')
    ON CONFLICT (kind, key) DO UPDATE SET revision = revision + 1
"""

NUMBERS_LIST = "SELECT json_group_object(key, revision) FROM documents WHERE kind = ?"


class SqliteRegistry:
    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        self._file = SqliteFile(path, patience=patience)

    def get(self, kind: str, key: str) -> Document | None:
        with self._file.lent() as connection:
            found = connection.execute("SELECT entry FROM documents WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return document_in(found[0]) if found else None

    def list(self, kind: str, *, prefix: str = "", after: str = "", limit: int | None = None) -> Sequence[Document]:
        wanted = {
            "kind": kind,
            "prefix": prefix,
            "after": after,
            "end": _end_of(prefix),
            "limit": -1 if limit is None else limit,
        }
        with self._file.lent() as connection:
            (found,) = connection.execute(LIST, wanted).fetchone()
        return documents_in(found)

    def write(self, *changes: Change) -> None:
        check_changes_of_one_write(changes)
        with self._file.writing() as connection:
            for change in changes:
                _make(connection, change)
            count(connection, counted_buckets(changes))

    def changes(self) -> Changes:
        with self._file.lent() as connection:
            return numbers_in(connection)

    def close(self) -> None:
        self._file.close()


def _make(connection: sqlite3.Connection, change: Change) -> None:
    place = (change.kind, change.key)
    found = connection.execute("SELECT revision FROM documents WHERE kind = ? AND key = ?", place).fetchone()
    document = outcome_of(change, found[0] if found else ABSENT)
    if document is not None:
        connection.execute(PUT, (*place, document.revision, entry_of(document).decode()))
    elif isinstance(change, Remove):
        connection.execute("DELETE FROM documents WHERE kind = ? AND key = ?", place)


def count(connection: sqlite3.Connection, buckets: Collection[int]) -> None:
    connection.executemany(COUNT, [(NUMBERS, str(bucket)) for bucket in buckets])


def numbers_in(connection: sqlite3.Connection) -> Changes:
    (found,) = connection.execute(NUMBERS_LIST, (NUMBERS,)).fetchone()
    return Changes({int(bucket): number for bucket, number in orjson.loads(found).items()})


def _end_of(prefix: str) -> str | None:
    """The least text that is greater than all that begin so; None when there is none."""
    for length in range(len(prefix), 0, -1):
        point = ord(prefix[length - 1])
        if point < 0x10FFFF:
            # No text is kept that contains one of the surrogates.
            return prefix[: length - 1] + chr(0xE000 if point == 0xD7FF else point + 1)
    return None


# The log index --------------------------------------------------------------------------------------------------------


HEAD = "SELECT body, revision FROM log_index_heads WHERE topic = ? AND partition = ?"

ADD = "INSERT OR REPLACE INTO log_index_segments (topic, partition, first, body, archived) VALUES (?, ?, ?, ?, ?)"

# One row, however many segments there are: SQLite's binding lets other threads run at every row.
LIST_SEGMENTS = """
    SELECT '[' || coalesce(group_concat(body), '') || ']' FROM (
        SELECT body FROM log_index_segments WHERE topic = ? AND partition = ? AND first >= ? ORDER BY first LIMIT ?)
"""

BEFORE = """
    SELECT '[' || coalesce(group_concat(body), '') || ']'
    FROM log_index_segments WHERE topic = ? AND partition = ? AND first < ?
"""

CLAIM = """
    INSERT INTO log_index_claims (name, owner, until) VALUES (?1, ?2, ?3)
    ON CONFLICT (name) DO UPDATE SET owner = ?2, until = ?3 WHERE owner = ?2 OR until < ?4 OR until > ?5
"""

PROGRESS = """
    INSERT INTO log_index_progress (stream, shard, sequence) VALUES (?1, ?2, ?3)
    ON CONFLICT (stream, shard) DO UPDATE SET sequence = ?3 WHERE sequence < ?3
"""

# A signpost to the topic that continues one has no partitions, and one that was just made has no signpost.
LIST_TOPICS = "SELECT json_group_array(topic) FROM log_index_topics WHERE NOT (body LIKE '{\"partitions\":0,%')"

REFERRED_TO = """
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
        with self._file.writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO log_index_topics (topic, body) VALUES (?, ?)",
                (topic, topic_body(Topic(partitions=partitions))),
            )

    def topic(self, topic: str) -> Topic | None:
        with self._file.lent() as connection:
            return _topic(connection, topic)

    def topics(self) -> Sequence[str]:
        return _texts(self._query_row(LIST_TOPICS)[0])

    def grow_topic(self, topic: str, partitions: int) -> None:
        self._change(topic, lambda known: replace(known, partitions=max(known.partitions, partitions)))

    def seal_topic(self, topic: str) -> None:
        self._change(topic, lambda known: replace(known, sealed=True), [bucket_of(TOPICS, topic)])

    def continue_topic(self, topic: str, following: str, behind: Sequence[str]) -> None:
        with self._file.writing() as connection:
            known = _topic(connection, topic)
            if known is None:
                raise UnknownTopic(topic)
            there = _topic(connection, following) or following_topic(topic, known, behind)
            _put(connection, topic, replace(known, continued_in=following))
            _put(connection, following, as_open_as(known, there))
            count(connection, [bucket_of(TOPICS, topic)])

    def delete_topic(self, topic: str) -> None:
        with self._file.writing() as connection:
            count(connection, [bucket_of(TOPICS, topic)])
            gone = _topic(connection, topic)
            connection.execute("DELETE FROM log_index_topics WHERE topic = ?", (topic,))
            if gone is not None and gone.continued_in and _topic(connection, gone.continued_in):
                _put(connection, topic, signpost(gone))
            elif gone is not None:
                _remove_signposts(connection, gone.continues)
            connection.execute("DELETE FROM log_index_heads WHERE topic = ?", (topic,))
            connection.execute("DELETE FROM log_index_segments WHERE topic = ?", (topic,))

    def let_go(self, topic: str, partition: int, oldest: int) -> Sequence[Location]:
        known = self._change(topic, lambda known: _with_oldest(known, partition, oldest))
        lowest = known.oldest[partition]
        (found,) = self._query_row(BEFORE, (topic, partition, lowest))
        gone = [segment for segment in _segments_in(found) if segment.end <= lowest]
        with self._file.writing() as connection:
            connection.executemany(
                "DELETE FROM log_index_segments WHERE topic = ? AND partition = ? AND first = ?",
                [(topic, partition, segment.first) for segment in gone],
            )
        return [segment.archived for segment in gone if segment.archived]

    def note_compacted(self, topic: str, partition: int, before: int) -> None:
        def noted(known: Topic) -> Topic:
            grown = max(before, known.compacted.get(partition, 0))
            return replace(known, compacted={**known.compacted, partition: grown})

        self._change(topic, noted)

    def changes(self) -> Changes:
        with self._file.lent() as connection:
            return numbers_in(connection)

    # Partitions

    def heads(self, places: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Head]:
        with self._file.lent() as connection:
            return {place: _head(connection, *place) for place in places}

    def extend(self, topic: str, partition: int, expected: int, head: Head, segment: Segment | None) -> bool:
        with self._file.writing() as connection:
            if _head(connection, topic, partition).revision != expected:
                return False
            connection.execute(
                "INSERT OR REPLACE INTO log_index_heads (topic, partition, revision, body) VALUES (?, ?, ?, ?)",
                (topic, partition, expected + 1, counted_body(head.counted)),
            )
            if segment is not None:
                _add(connection, topic, partition, [segment])
            return True

    def segment(self, topic: str, partition: int, offset: int) -> Segment | None:
        found = self._maybe_one(
            "SELECT body FROM log_index_segments WHERE topic = ? AND partition = ? AND first <= ?"
            " ORDER BY first DESC LIMIT 1",
            (topic, partition, offset),
        )
        return segment_in(found[0]) if found else None

    def segments(self, topic: str, partition: int, start: int, limit: int) -> Sequence[Segment]:
        (found,) = self._query_row(LIST_SEGMENTS, (topic, partition, start, limit))
        return _segments_in(found)

    def replace(self, topic: str, partition: int, segments: Sequence[Segment], end: int) -> None:
        with self._file.writing() as connection:
            connection.execute(
                "DELETE FROM log_index_segments WHERE topic = ? AND partition = ? AND first >= ? AND first < ?",
                (topic, partition, segments[0].first, end),
            )
            _add(connection, topic, partition, segments)

    def referred_to(self) -> Collection[str]:
        (found,) = self._query_row(REFERRED_TO)
        return frozenset(_texts(found))

    # Claims and progress

    def claim(self, name: str, owner: str, seconds: float) -> bool:
        now = time.time()
        with self._file.writing() as connection:
            return connection.execute(CLAIM, (name, owner, now + seconds, now, last_honest(now, seconds))).rowcount > 0

    def release(self, name: str, owner: str) -> None:
        with self._file.writing() as connection:
            connection.execute("DELETE FROM log_index_claims WHERE name = ? AND owner = ?", (name, owner))

    def progress(self, stream: str) -> Mapping[str, Progress]:
        with self._file.lent() as connection:
            found = connection.execute("SELECT shard, sequence FROM log_index_progress WHERE stream = ?", (stream,))
            return {shard: progress_in(body) for shard, body in found.fetchall()}

    def note_progress(self, stream: str, shard: str, progress: Progress) -> None:
        with self._file.writing() as connection:
            connection.execute(PROGRESS, (stream, shard, progress_body(progress)))

    def close(self) -> None:
        self._file.close()

    def _change(self, topic: str, changed: Callable[[Topic], Topic], counted: Sequence[int] = ()) -> Topic:
        with self._file.writing() as connection:
            count(connection, counted)
            known = _topic(connection, topic)
            if known is None:
                raise UnknownTopic(topic)
            wanted = changed(known)
            connection.execute("UPDATE log_index_topics SET body = ? WHERE topic = ?", (topic_body(wanted), topic))
        return wanted

    def _query_row(self, statement: str, values: Sequence[object] = ()) -> Sequence[Any]:
        found = self._maybe_one(statement, values)
        assert found is not None
        return found

    def _maybe_one(self, statement: str, values: Sequence[object]) -> Sequence[Any] | None:
        with self._file.lent() as connection:
            found: Sequence[Any] | None = connection.execute(statement, values).fetchone()
        return found


def _topic(connection: sqlite3.Connection, topic: str) -> Topic | None:
    found = connection.execute("SELECT body FROM log_index_topics WHERE topic = ?", (topic,)).fetchone()
    return topic_in(found[0]) if found else None


def _put(connection: sqlite3.Connection, topic: str, known: Topic) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO log_index_topics (topic, body) VALUES (?, ?)", (topic, topic_body(known))
    )


def _remove_signposts(connection: sqlite3.Connection, topic: str | None) -> None:
    while topic and (known := _topic(connection, topic)) and is_signpost(known):
        connection.execute("DELETE FROM log_index_topics WHERE topic = ?", (topic,))
        topic = known.continues


def _head(connection: sqlite3.Connection, topic: str, partition: int) -> Head:
    found = connection.execute(HEAD, (topic, partition)).fetchone()
    return Head(counted_in(found[0]), found[1]) if found else Head()


def _add(connection: sqlite3.Connection, topic: str, partition: int, segments: Sequence[Segment]) -> None:
    connection.executemany(
        ADD,
        [
            (topic, partition, each.first, segment_body(each), each.archived.key if each.archived else None)
            for each in segments
        ],
    )


def _with_oldest(known: Topic, partition: int, oldest: int) -> Topic:
    return replace(known, oldest={**known.oldest, partition: max(oldest, known.oldest.get(partition, 0))})


def _segments_in(text: str) -> list[Segment]:
    return [segment_of(found) for found in orjson.loads(text)]


def _texts(text: str) -> list[str]:
    return [str(each) for each in orjson.loads(text)]
