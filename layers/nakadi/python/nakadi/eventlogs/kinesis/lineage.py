"""The shards of a stream, and which came from which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from nakadi.model.log_index import Mark

LONG_GONE = -1


@dataclass(frozen=True, slots=True)
class Shard:
    id: str
    first_hash: int
    last_hash: int
    parents: tuple[str, ...] = ()
    closed: bool = False


class Lineage:
    """What one listing of the shards says. Shards that the stream has forgotten are older than all it lists."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards: Mapping[str, Shard] = {shard.id: shard for shard in shards}

    def __contains__(self, shard: str) -> bool:
        return shard in self._shards

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def chain(self, hash_key: int) -> list[str]:
        """The shards that cover a hash key, one after the other in time."""
        covering = [each for each in self._shards.values() if each.first_hash <= hash_key <= each.last_hash]
        return [each.id for each in sorted(covering, key=lambda each: self._depths[each.id])]

    def parents(self, shard: str) -> list[str]:
        """Those that are still listed."""
        return [parent for parent in self._shards[shard].parents if parent in self._shards]

    def origins(self, shard: str) -> tuple[str, ...]:
        """Those it came from, whether or not they are still listed."""
        return self._shards[shard].parents if shard in self._shards else ()

    def first_hash(self, shard: str) -> int:
        return self._shards[shard].first_hash

    def children(self, shard: str) -> list[str]:
        return [each.id for each in self._shards.values() if shard in each.parents]

    def leaves(self) -> list[str]:
        """Those without children: at any moment they share all hash keys among them."""
        parents = {parent for shard in self._shards.values() for parent in shard.parents}
        return [shard for shard in self._shards if shard not in parents]

    def rank(self, mark: Mark | None) -> tuple[int, int]:
        """By this, two records of one partition are in their order. Nothing at all comes before every record."""
        return (LONG_GONE, -1) if mark is None else (self._depths.get(mark.shard, LONG_GONE), mark.sequence)

    @cached_property
    def _depths(self) -> Mapping[str, int]:
        depths: dict[str, int] = {}
        for shard in self._parents_first():
            depths[shard] = 1 + max((depths[parent] for parent in self.parents(shard)), default=LONG_GONE)
        return depths

    def _parents_first(self) -> Iterator[str]:
        waiting = dict.fromkeys(self._shards)
        while waiting:
            ready = [each for each in waiting if not any(parent in waiting for parent in self.parents(each))]
            if not ready:
                raise ValueError("shards that descend from each other")
            for each in ready:
                del waiting[each]
                yield each
