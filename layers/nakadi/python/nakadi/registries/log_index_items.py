"""The items of a log index in DynamoDB, and what they are called."""

from __future__ import annotations

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from nakadi.dynamodb.tables import LOG_INDEX

SEGMENTS = "segments#"


class LogIndexItem(Model):
    """Topics and heads are JSON with a revision; a claim has its owner in `body`, and `until` when it holds."""

    class Meta:
        table_name = LOG_INDEX.suffix  # every index has a model with the full name of its own table

    place = UnicodeAttribute(hash_key=True)
    item = UnicodeAttribute(range_key=True)
    body = UnicodeAttribute()
    revision = NumberAttribute(null=True)
    until = NumberAttribute(null=True)


def topic_place(topic: str) -> str:
    return f"topic#{topic}"


def head_item(partition: int) -> str:
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
