"""The policy of an archive: when events move, how long they stay, and which topics exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from nakadi.model.outcomes import Unavailable


class ArchivePolicy(Struct, frozen=True, kw_only=True):
    """When events move to the archive, and how long each half keeps them.

    The first three values are in seconds. `archive_after`: about how long events wait to be archived; callers that
    trigger every step themselves set an infinite time. `hot_retention`: how long the hot half keeps archived events.
    `unreferenced_grace`: how long archive objects without references stay. It must be longer than the time from writing
    an object to writing its index entry.

    `new_share_to_compact`: the cold part of a compacted partition is rewritten once the newer events amount to this
    share of it. `another_process_archives`: another process archives the events that are appended here.
    """

    archive_after: float = 60.0
    hot_retention: float = 86_400.0
    unreferenced_grace: float = 86_400.0
    new_share_to_compact: float = 0.25
    another_process_archives: bool = False


class TopicCatalog(Protocol):
    """The topics, and the event types that they belong to."""

    def topics(self) -> Iterable[tuple[str, int]]:
        """Every topic with its number of partitions."""

    def event_type_name_of(self, topic: str) -> str | None:
        """The name of the event type that a topic belongs to, if it is known."""

    def may_remove_records_from(self, topic: str) -> bool:
        """Whether archived events may be removed from a topic: False if another broker uses the topic, or the topic is
        unknown.
        """


class EmptyTopicCatalog:
    """A catalog without topics, for an archive that is used without a registry of event types."""

    def topics(self) -> Iterable[tuple[str, int]]:
        return ()

    def event_type_name_of(self, _topic: str) -> str | None:
        return None

    def may_remove_records_from(self, _topic: str) -> bool:
        return True


def event_type_name_or_topic(catalog: TopicCatalog, topic: str) -> str:
    """The name of the topic's event type, by which operators know it; the topic if the name cannot be found."""
    try:
        return catalog.event_type_name_of(topic) or topic
    except Unavailable:
        return topic


def describe_topic(catalog: TopicCatalog, topic: str) -> str:
    """A description of the topic for a log line."""
    name = event_type_name_or_topic(catalog, topic)
    return f"the topic {topic}" if name == topic else f"{name} (topic {topic})"


def describe_partition(catalog: TopicCatalog, topic: str, partition: int) -> str:
    return f"partition {partition} of {describe_topic(catalog, topic)}"
