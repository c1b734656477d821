"""What archive objects are called.

The second part of a name tells who keeps the object, the *namespace*: a stream, or a log index. Whoever clears up in a
namespace leaves alone what is in others.
"""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

LOG = "log/"
"""Events as they came, of one partition or of many."""

REWRITTEN = "compacted/"
"""Objects in here hold events of one partition that were written anew, and nobody else's."""

NOBODY = "_"
"""In place of the name of an event type that is not known."""


def logged(namespace: str, event_type: str | None, topic: str, first: datetime) -> str:
    """A new name for events of a topic, the first of which is from then."""
    return f"{LOG}{namespace}/{event_type or NOBODY}/{first:%Y-%m-%d}/{topic}-{uuid4().hex}.json.gz"


def rewritten(old: str, topic: str, partition: int, first: int) -> str:
    """A new name for events that so far were in the object `old`."""
    return rewritten_in(namespace_of(old), topic, partition, first)


def rewritten_in(namespace: str, topic: str, partition: int, first: int) -> str:
    return f"{REWRITTEN}{namespace}/{topic}/{partition}/{first:018d}-{uuid4().hex}.json.gz"


def namespace_of(key: str) -> str:
    return key.split("/", 2)[1]
