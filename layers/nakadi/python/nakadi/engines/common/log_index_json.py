"""The contents of log indexes as text, because sequence numbers have more digits than the numbers of most stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import json
from msgspec.structs import replace

from nakadi.common.converting import Converter
from nakadi.model.log_index import (
    ArchiveLocation,
    IndexingState,
    IndexSegment,
    RecordPosition,
    ShardProgress,
    Topic,
    UnfinishedAppendPart,
)

SEQUENCE_DIGITS = 129

# Seconds by which clocks may differ when a claim is checked.
MAX_CLOCK_DIFFERENCE_SECONDS = 60


def latest_plausible_expiry(now: float, seconds: float) -> float:
    """The latest possible end of a claim that was made for `seconds` until now. A claim with a later end was made
    before a clock was set back, and is ignored: it would block all other processes until the clock has caught up."""
    return now + max(seconds, 0) + MAX_CLOCK_DIFFERENCE_SECONDS


def shard_progress_text(progress: ShardProgress) -> str:
    """Progress as a text of constant length, so that later progress is the greater text."""
    return f"{progress.last_sequence:0{SEQUENCE_DIGITS}d} {progress.ended:d} {progress.complete_until or 0:020d}"


def shard_progress_from_text(body: str) -> ShardProgress:
    """The progress in a text. Texts of earlier versions have only the sequence number, and sort before newer texts with
    the same number.
    """
    sequence, *more = body.split()
    if not more:
        return ShardProgress(int(sequence))
    ended, complete_at = map(int, more)
    return ShardProgress(int(sequence), bool(ended), complete_at or None)


def continuing_topic(name: str, continued: Topic, begun_after_gaps: Sequence[str]) -> Topic:
    """A topic that continues the topic `name`."""
    return Topic(
        partitions=continued.partitions,
        sealed=continued.sealed,
        continues=name,
        begun_after_gaps=tuple(begun_after_gaps),
    )


def with_changes_of_continued_topic(continued: Topic, continuing: Topic) -> Topic:
    """The topic `continuing`, with changes that the topic it continues got later."""
    return replace(
        continuing,
        partitions=max(continued.partitions, continuing.partitions),
        sealed=continued.sealed or continuing.sealed,
    )


def placeholder_of_deleted_topic(topic: Topic) -> Topic:
    """The placeholder of a deleted topic that another one continues: it says where its records are indexed."""
    return Topic(partitions=0, continues=topic.continues, continued_in=topic.continued_in)


def is_deleted_topic_placeholder(topic: Topic) -> bool:
    return not topic.partitions and topic.continued_in is not None


_topics = Converter(Topic)


def topic_json(topic: Topic) -> str:
    return json.encode(topic).decode()


def topic_from_json(body: str) -> Topic:
    return _topics.from_builtins(orjson.loads(body))


def indexing_state_json(state: IndexingState) -> str:
    return _json_text(_indexing_state_document(state))


def indexing_state_from_json(body: str) -> IndexingState:
    return _indexing_state_from_document(orjson.loads(body))


def segment_json(segment: IndexSegment) -> str:
    return _json_text(
        {
            "before": _indexing_state_document(segment.state_before),
            "count": segment.offset_count,
            "since": segment.first_stored_at,
            "until": segment.last_stored_at,
            "archived": list(segment.location) if segment.location else None,
            "events": segment.event_count,
        }
    )


def segment_from_json(body: str) -> IndexSegment:
    return segment_from_document(orjson.loads(body))


def segment_from_document(found: Mapping[str, Any]) -> IndexSegment:
    return IndexSegment(
        state_before=_indexing_state_from_document(found["before"]),
        offset_count=found["count"],
        first_stored_at=found["since"],
        last_stored_at=found["until"],
        location=ArchiveLocation(*found["archived"]) if found["archived"] else None,
        event_count=found.get("events"),
    )


def _indexing_state_document(state: IndexingState) -> Mapping[str, Any]:
    return {
        "mark": _record_position_document(state.last_position),
        "next": state.next_offset,
        "latest": state.latest_stored_at,
        "sealed_at": _record_position_document(state.sealed_at),
        "parts": [
            [part.append_id.hex(), part.part_number, _record_position_document(part.position), part.arrived_at]
            for part in state.unfinished_parts
        ],
    }


def _indexing_state_from_document(found: Mapping[str, Any]) -> IndexingState:
    parts = [
        UnfinishedAppendPart(bytes.fromhex(append), number, RecordPosition(mark[0], int(mark[1])), arrived)
        for append, number, mark, arrived in found["parts"]
    ]
    return IndexingState(
        last_position=_record_position_from_document(found["mark"]),
        next_offset=found["next"],
        latest_stored_at=found["latest"],
        sealed_at=_record_position_from_document(found["sealed_at"]),
        unfinished_parts=tuple(parts),
    )


def _record_position_document(position: RecordPosition | None) -> list[str] | None:
    return None if position is None else [position.shard, str(position.sequence)]


def _record_position_from_document(found: list[str] | None) -> RecordPosition | None:
    return None if found is None else RecordPosition(found[0], int(found[1]))


def _json_text(document: Any) -> str:
    return orjson.dumps(document).decode()
