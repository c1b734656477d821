"""Shards and their parents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from msgspec import Struct

from nakadi.model.log_index import RecordPosition

UNLISTED_SHARD_DEPTH = -1


class Shard(Struct, frozen=True):
    id: str
    first_hash_key: int
    last_hash_key: int
    parent_ids: tuple[str, ...] = ()
    is_closed: bool = False


class ShardTree:
    """The shards of one listing, and their parents.

    Shards that the stream has forgotten are older than all listed ones.
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards: Mapping[str, Shard] = {shard.id: shard for shard in shards}

    def __contains__(self, shard: str) -> bool:
        return shard in self._shards

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def shards_covering(self, hash_key: int) -> list[str]:
        """The shards that cover a hash key, one after the other in time."""
        covering = [each for each in self._shards.values() if each.first_hash_key <= hash_key <= each.last_hash_key]
        return [each.id for each in sorted(covering, key=lambda each: self._depths[each.id])]

    def listed_parents(self, shard: str) -> list[str]:
        """The parents of a shard that are still listed."""
        return [parent for parent in self._shards[shard].parent_ids if parent in self._shards]

    def all_parents(self, shard: str) -> tuple[str, ...]:
        """The parents of a shard, whether or not they are still listed."""
        return self._shards[shard].parent_ids if shard in self._shards else ()

    def first_hash_key(self, shard: str) -> int:
        return self._shards[shard].first_hash_key

    def children(self, shard: str) -> list[str]:
        return [each.id for each in self._shards.values() if shard in each.parent_ids]

    def leaves(self) -> list[str]:
        """The shards without children, which together cover all hash keys, each once."""
        parents = {parent for shard in self._shards.values() for parent in shard.parent_ids}
        return [shard for shard in self._shards if shard not in parents]

    def rank(self, position: RecordPosition | None) -> tuple[int, int]:
        """A key that sorts the records of one partition in order. The key for None sorts before that of every
        record.
        """
        return (
            (UNLISTED_SHARD_DEPTH, -1)
            if position is None
            else (self._depths.get(position.shard, UNLISTED_SHARD_DEPTH), position.sequence)
        )

    @cached_property
    def _depths(self) -> Mapping[str, int]:
        depths: dict[str, int] = {}
        for shard in self._shards_parents_first():
            depths[shard] = 1 + max(
                (depths[parent] for parent in self.listed_parents(shard)), default=UNLISTED_SHARD_DEPTH
            )
        return depths

    def _shards_parents_first(self) -> Iterator[str]:
        waiting = dict.fromkeys(self._shards)
        while waiting:
            ready = [each for each in waiting if not any(parent in waiting for parent in self.listed_parents(each))]
            if not ready:
                raise ValueError("shards that descend from each other")
            for each in ready:
                del waiting[each]
                yield each
