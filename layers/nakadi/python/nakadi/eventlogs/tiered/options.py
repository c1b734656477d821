"""What the halves of a log are told from outside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """Seconds, but for the last. `after`: how long events wait to be archived, about; an infinite time is for those
    who see to everything themselves. `hot`: how long the hot half keeps what is archived. `grace`: how long archive
    objects stay that nobody refers to (any more): longer than it takes from writing one to telling the index.

    `share`: the cold part of a compacted partition is written anew when what came since is such a part of it.
    """

    after: float = 60.0
    hot: float = 86_400.0
    grace: float = 86_400.0
    share: float = 0.25


class Directory(Protocol):
    """Which topics there are, and whose they are."""

    def topics(self) -> Iterable[tuple[str, int]]:
        """Every topic with its number of partitions."""

    def event_type_of(self, topic: str) -> str | None:
        """The name of the event type that a topic belongs to, if it is known."""


class NoDirectory:
    """Nothing is known of topics but what is seen of them."""

    def topics(self) -> Iterable[tuple[str, int]]:
        return ()

    def event_type_of(self, _topic: str) -> str | None:
        return None
