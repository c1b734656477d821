"""Judges the diaries of consumers: whether every event arrived, in order, and how often."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Entry = Sequence[Any]


@dataclass(slots=True)
class Verdict:
    """`again` counts events that came to a stream although they were committed before the stream was requested.
    `stored_again` counts the copies of events that publishers repeated and the log has more than once. `of_sink` is the
    verdict on the deliveries to a sink.
    """

    acknowledged: int = 0
    delivered: int = 0
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    again: int = 0
    stored_again: int = 0
    sessions: int = 0
    of_sink: Verdict | None = None

    @property
    def is_good(self) -> bool:
        is_sink_good = self.of_sink is None or self.of_sink.is_good
        return is_sink_good and self.lost == self.out_of_order == self.again == self.stored_again == 0

    def __str__(self) -> str:
        return (
            f"acknowledged {self.acknowledged:,}, delivered {self.delivered:,}, lost {self.lost}, "
            f"out of order {self.out_of_order}, sent again after a commit {self.again}, "
            f"stored again {self.stored_again}, "
            f"duplicates {self.duplicates:,}, sessions {self.sessions:,}"
        ) + (f"\nthe sink: {self.of_sink}" if self.of_sink is not None else "")


def entries(diary: Path) -> Iterator[Entry]:
    """The whole lines that a consumer has written; its end may have cut off the last one."""
    lines = diary.read_bytes().splitlines(keepends=True)
    return (json.loads(line) for line in lines if line.endswith(b"\n"))


@dataclass(slots=True)
class Judge:
    """Reads the entries of diaries in the order of time, and counts in its verdict what is wrong."""

    ids: set[str] = field(default_factory=set)
    verdict: Verdict = field(default_factory=Verdict)
    # The last offset that anybody got of each partition, and the last one that each session got of it.
    _reached: dict[str, int] = field(default_factory=dict)
    _sent: dict[tuple[str, str], int] = field(default_factory=dict)
    _of_key: dict[str, int] = field(default_factory=dict)
    _opened: dict[str, float] = field(default_factory=dict)
    # The commits of each partition: when, and up to which offset.
    _commits: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def read(self, entries: Iterable[Entry]) -> None:
        for moment, what, session, *rest in sorted(entries, key=lambda entry: float(entry[0])):
            if what == "opened":
                self._opened[session] = rest[0]
                self.verdict.sessions += 1
            elif what == "committed":
                self._commits.setdefault(rest[0], []).append((moment, _number(rest[1])))
            else:
                self._note_batch(session, rest[0], _number(rest[1]), rest[2])

    def count_lost(self, acknowledged: Collection[str]) -> int:
        return sum(each not in self.ids for each in acknowledged)

    def _note_batch(self, session: str, partition: str, last: int, ids: Sequence[str]) -> None:
        verdict, key = self.verdict, (session, partition)
        first = last - len(ids) + 1
        reached = self._reached.get(partition, -1)
        verdict.delivered += len(ids)
        verdict.duplicates += max(0, min(reached, last) - first + 1)
        # A session continues where it was. A new one begins behind the committed events, so it leaves no gap behind
        # `reached`.
        if first > reached + 1 or first <= self._sent.get(key, -1):
            verdict.out_of_order += 1
        committed = self._committed_before(self._opened[session], partition)
        verdict.again += max(0, min(committed, last) - first + 1)
        self._reached[partition] = max(reached, last)
        self._sent[key] = last
        for each in ids:
            self._note_event(each)

    def _note_event(self, event: str) -> None:
        """Note an event, and count it as out of order if it comes for the first time, but after a later event of its
        key.
        """
        if event not in self.ids:
            key, _, number = event.rpartition(":")
            if int(number) <= self._of_key.get(key, -1):
                self.verdict.out_of_order += 1
            self._of_key[key] = int(number)
            self.ids.add(event)

    def _committed_before(self, moment: float, partition: str) -> int:
        return max((offset for at, offset in self._commits.get(partition, ()) if at < moment), default=-1)


def _number(offset: str) -> int:
    return int(offset.rpartition("-")[2])
