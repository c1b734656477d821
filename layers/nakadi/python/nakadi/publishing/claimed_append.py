"""Appends that store an event once, in a log and a separate store of claims.

Each event's id is claimed, then the events are appended, and then the claims are confirmed. An attempt that finds a
confirmed claim has a duplicate. An unconfirmed claim comes from an attempt that is in progress, whose process died, or
whose outcome is unknown. A later attempt then reads the partition from the position that the claim names. If it finds
the event there, its own event is a duplicate. If not, it may take over the claim once the earlier attempt has certainly
ended; until then, its event is refused: so no duplicate is stored, and no missing event counts as stored.

An attempt has certainly ended `APPEND_SETTLES_AFTER` after it began: no append begins later than `CLAIMS_HOLD_FOR`
after its claims, or takes longer than the remaining time in any log, minus the possible difference between clocks.

The append yields each step that waits, so that tests can take other steps in between, and let a step fail.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import replace

from nakadi.common.waiting import CallThreads, ThreadCall, run_blocking
from nakadi.engines.common.duplicates import without_duplicates
from nakadi.model.events import (
    AppendRefused,
    AppendResult,
    AppendStored,
    AppendStoredExcept,
    DuplicateEvent,
    EventPlace,
    Record,
    StoredEvent,
    indices_within_partitions,
)
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import Clock
from nakadi.ports.deduplication import DeduplicatingLog, EventIds, unpack_eids
from nakadi.ports.eid_claims import EidClaim, EidClaims
from nakadi.ports.event_log import EventLog, EventLogs, OffsetUnavailable, SealedTopic, UnknownTopic
from nakadi.publishing.deduplication import eid_of_record

log = logging.getLogger(__name__)

CLAIMS_HOLD_FOR = timedelta(seconds=20)
APPEND_SETTLES_AFTER = timedelta(seconds=90)
APPEND_SETTLES_AFTER_ITS_END = timedelta(seconds=30)
"""How long after an append has returned without success its attempt has certainly ended: messages in the network arrive
within half of this time, and the other half allows for different clocks."""

CLAIMS_KEPT_BEHIND_WINDOW = timedelta(hours=1)
MAX_CLOCK_DIFFERENCE = timedelta(seconds=30)
"""The largest permitted difference between the log's clock, which stamps events, and publishers' clocks."""

POSITION_REFRESH_SECONDS = 10.0
MAX_KNOWN_POSITIONS = 10_000
MAX_EVENTS_READ_FOR_PLACES = 20_000
"""The largest number of events that a search for places reads, because places are only for information."""

UNDER_WAY_MESSAGE = "another attempt to publish this event has not ended, please repeat request"
TOO_LATE_MESSAGE = "timed out"

Step = Callable[[], Any]
Steps = Generator[Step, Any, Mapping[int, AppendResult]]
Fate = DuplicateEvent | AppendRefused | None
Place = tuple[str, str, int]


class KnownPositions:
    """Positions that were once the ends of partitions: all events that are appended from now on come after these."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Several threads replace and read entries, each as a whole. It does not matter which thread is last, because
        # any position that was ever read serves.
        self._positions: dict[tuple[str, int], tuple[float, int]] = {}

    def read(self, event_log: EventLog, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        now = self._clock.monotonic()
        oldest = now - POSITION_REFRESH_SECONDS
        stale = [each for each in partitions if self._positions.get((topic, each), (oldest - 1, 0))[0] < oldest]
        if stale:
            if len(self._positions) > MAX_KNOWN_POSITIONS:
                self._positions = {}
            for partition, bounds in event_log.bounds(topic, stale).items():
                self._positions[topic, partition] = now, bounds.next_offset
        return {each: self._positions.get((topic, each), (0, 0))[1] for each in partitions}


class ClaimedAppend(Struct, kw_only=True):
    """One append. `fates` has the results of events that are not simply stored, by their index in the batch."""

    logs: EventLogs
    claims: EidClaims
    positions: KnownPositions
    clock: Clock
    storage_id: str
    topic: str
    batches: Mapping[int, Sequence[Record]]
    ids: EventIds
    eids: Sequence[bytes] = ()
    fates: dict[int, Fate] = field(default_factory=dict)
    wanted: dict[int, EidClaim] = field(default_factory=dict)
    repeats: dict[int, int] = field(default_factory=dict)
    standing: dict[int, EidClaim] = field(default_factory=dict)

    def steps(self) -> Steps:
        begun = self.clock.monotonic()
        yield from self._claim()
        yield from self._resolve_claims_of_others()
        own = [index for index in self.wanted if index not in self.fates]
        if self.clock.monotonic() - begun > CLAIMS_HOLD_FOR.total_seconds():
            yield partial(self.claims.remove, [self.wanted[index] for index in own])
            self.fates |= dict.fromkeys(own, AppendRefused(TOO_LATE_MESSAGE))
        elif own:
            yield from self._append(own)
        yield from self._find_places()
        return self._fates_by_partition()

    def _claim(self) -> Generator[Step, Any, None]:
        partitions = sorted({each for each in self.ids.partitions if each in self.batches})
        event_log = self.logs.for_storage(self.storage_id)
        starts = yield partial(self.positions.read, event_log, self.topic, partitions)
        now, token = self.clock.now(), uuid4().hex
        first: dict[bytes, int] = {}
        scope = blake2b(self.ids.scope.encode(), digest_size=16).digest()
        self.eids = unpack_eids(self.ids.packed_eids)
        for index, (eid, partition) in enumerate(zip(self.eids, self.ids.partitions, strict=True)):
            if partition not in self.batches:
                continue
            if first.setdefault(eid, index) != index:
                self.repeats[index] = first[eid]
                continue
            self.wanted[index] = EidClaim(
                key=scope + eid,
                token=token,
                storage_id=self.storage_id,
                topic=self.topic,
                timeline=self.ids.timeline,
                partition=partition,
                start=starts[partition],
                since=now,
                settled_at=now + APPEND_SETTLES_AFTER,
                expires_at=now + self.ids.window + CLAIMS_KEPT_BEHIND_WINDOW,
            )
        found = yield partial(self.claims.claim, list(self.wanted.values()))
        self.standing = {index: found[each.key] for index, each in self.wanted.items() if each.key in found}

    def _resolve_claims_of_others(self) -> Generator[Step, Any, None]:
        # The time is taken before the log is read: after it, no event of a claim that is settled by then can enter the
        # log.
        now = self.clock.now()
        unconfirmed = {index: each for index, each in self.standing.items() if not each.is_stored}
        found = yield from self._find_events(unconfirmed, limit=None)
        free: list[int] = []
        confirmed: list[tuple[EidClaim, EidClaim]] = []
        for index, event in found.items():
            confirmed.append((self.standing[index], self._confirmed_claim(self.standing[index], event.stored_at)))
            self.standing[index] = confirmed[-1][1]
        for index, claim in self.standing.items():
            if claim.is_stored and now - claim.since < self.ids.window:
                self.fates[index] = DuplicateEvent(_place(claim, found.get(index)))
            elif claim.is_stored or now >= claim.settled_at:
                free.append(index)
            else:
                self.fates[index] = AppendRefused(UNDER_WAY_MESSAGE)
        if confirmed:
            yield partial(self.claims.replace, confirmed)
        if free:
            yield from self._renew_starts([index for index in free if self.standing[index].is_stored])
            taken = yield partial(self.claims.replace, [(self.standing[each], self.wanted[each]) for each in free])
            lost = [index for index in free if self.wanted[index].key not in taken]
            self.fates |= dict.fromkeys(lost, AppendRefused(UNDER_WAY_MESSAGE))

    def _renew_starts(self, indices: Sequence[int]) -> Generator[Step, Any, None]:
        """Move the starts of claims behind events of earlier windows, which could be mistaken for the events of these
        claims."""
        partitions = sorted({self.wanted[index].partition for index in indices})
        if partitions:
            event_log = self.logs.for_storage(self.storage_id)
            bounds = yield partial(event_log.bounds, self.topic, partitions)
            for index in indices:
                claim = self.wanted[index]
                self.wanted[index] = replace(claim, start=bounds[claim.partition].next_offset)

    def _append(self, own: Sequence[int]) -> Generator[Step, Any, None]:
        claims = [self.wanted[index] for index in own]
        left_out = self._places_within_partitions(set(range(len(self.eids))).difference(own))
        batches = without_duplicates(self.batches, left_out)
        event_log = self.logs.for_storage(self.storage_id)
        try:
            results = yield partial(_append_to, event_log, self.topic, batches)
        except (SealedTopic, UnknownTopic):
            yield partial(self.claims.remove, claims)
            raise
        except Unavailable:
            yield from self._note_end([(each, self._soon_settled_claim(each)) for each in claims])
            raise
        now = self.clock.now()
        refused = {partition: each for partition, each in results.items() if isinstance(each, AppendRefused)}
        for index in own:
            if (partition := self.wanted[index].partition) in refused:
                self.fates[index] = refused[partition]
        yield from self._note_end(
            [
                (
                    each,
                    self._soon_settled_claim(each) if each.partition in refused else self._confirmed_claim(each, now),
                )
                for each in claims
            ]
        )

    def _note_end(self, changes: list[tuple[EidClaim, EidClaim]]) -> Generator[Step, Any, None]:
        """Record the outcome of an append in its claims. If that fails, the log is read when another attempt needs to
        know the outcome.
        """
        try:
            yield partial(self.claims.replace, changes)
        except Unavailable as error:
            log.warning("The claims of %s events could not be confirmed: %r", len(changes), error)

    def _confirmed_claim(self, claim: EidClaim, stored_at: datetime) -> EidClaim:
        expires_at = stored_at + self.ids.window + CLAIMS_KEPT_BEHIND_WINDOW
        return replace(claim, is_stored=True, since=stored_at, expires_at=expires_at)

    def _soon_settled_claim(self, claim: EidClaim) -> EidClaim:
        return replace(claim, settled_at=min(claim.settled_at, self.clock.now() + APPEND_SETTLES_AFTER_ITS_END))

    # The places of events

    def _find_places(self) -> Generator[Step, Any, None]:
        """Find the unknown places of duplicates, as far as that takes little time."""
        for index, first in self.repeats.items():
            fate = self.fates.get(first)
            self.fates[index] = fate if isinstance(fate, AppendRefused) else DuplicateEvent(None)
        unknown = {
            index: self._first_claim(index) for index, fate in self.fates.items() if fate == DuplicateEvent(None)
        }
        try:
            found = yield from self._find_events(unknown, MAX_EVENTS_READ_FOR_PLACES)
        except Unavailable as error:
            log.warning("The places of duplicates in %s could not be found: %r", self.topic, error)
            return
        self.fates |= {index: DuplicateEvent(_place(unknown[index], event)) for index, event in found.items()}

    def _first_claim(self, index: int) -> EidClaim:
        first = self.repeats.get(index, index)
        return self.standing.get(first) or self.wanted[first]

    def _find_events(
        self, claims: Mapping[int, EidClaim], limit: int | None
    ) -> Generator[Step, Any, Mapping[int, StoredEvent]]:
        """Find the events that are in the partitions that their claims name."""
        by_place: defaultdict[Place, dict[int, EidClaim]] = defaultdict(dict)
        for index, claim in claims.items():
            by_place[claim.storage_id, claim.topic, claim.partition][index] = claim
        found: dict[int, StoredEvent] = {}
        for place, some in by_place.items():
            events = yield partial(self._read_events, place, some, limit)
            found |= {index: events[self.eids[index]] for index in some if self.eids[index] in events}
        return found

    def _read_events(
        self, place: Place, claims: Mapping[int, EidClaim], limit: int | None
    ) -> Mapping[bytes, StoredEvent]:
        storage_id, topic, partition = place
        event_log = self.logs.for_storage(storage_id)
        directed_to = next(iter(next(iter(self.batches.values())))).directed_to
        # Events of an earlier window may lie before the start of a claim.
        start_of = {self.eids[index]: claim.start for index, claim in claims.items()}
        latest = max(each.settled_at for each in claims.values()) + MAX_CLOCK_DIFFERENCE
        found: dict[bytes, StoredEvent] = {}
        try:
            bounds = event_log.bounds(topic, [partition])[partition]
            offset = max(bounds.oldest, min(start_of.values()))
            end = bounds.next_offset if limit is None else min(bounds.next_offset, offset + limit)
            while offset < end and len(found) < len(start_of):
                some = event_log.read(topic, partition, offset)
                for event in some.events:
                    eid = eid_of_record(event.record) if event.record.directed_to == directed_to else None
                    if eid in start_of and eid not in found and event.offset >= start_of[eid]:
                        found[eid] = event
                if not some.events or some.events[-1].stored_at > latest:
                    break
                offset = some.next_offset
        except (UnknownTopic, OffsetUnavailable):
            return found  # the earlier event no longer exists, so no reader can get it twice
        return found

    # Results

    def _places_within_partitions(self, indices: set[int]) -> Mapping[int, dict[int, Any]]:
        places: dict[int, dict[int, Any]] = {}
        for index, (partition, within) in enumerate(
            zip(self.ids.partitions, indices_within_partitions(self.ids.partitions), strict=True)
        ):
            if index in indices:
                places.setdefault(partition, {})[within] = self.fates.get(index)
        return places

    def _fates_by_partition(self) -> Mapping[int, AppendResult]:
        exceptions = self._places_within_partitions({index for index, fate in self.fates.items() if fate is not None})
        return {
            partition: AppendStoredExcept(exceptions[partition]) if partition in exceptions else AppendStored()
            for partition in self.batches
        }


def _append_to(event_log: EventLog, topic: str, batches: Mapping[int, Sequence[Record]]) -> Mapping[int, AppendResult]:
    return run_blocking(event_log.append(topic, batches))


def _place(claim: EidClaim, event: StoredEvent | None) -> EventPlace | None:
    return None if event is None else EventPlace(claim.timeline, claim.partition, event.offset)


def run_steps(steps: Steps) -> Mapping[int, AppendResult]:
    """Take each step, and pass its result or its error to the next one."""
    try:
        step = next(steps)
        while True:
            try:
                result = step()
            except Exception as error:  # noqa: BLE001  # the append handles it
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        fates: Mapping[int, AppendResult] = end.value
        return fates


class ClaimingLog(Struct, frozen=True, kw_only=True):
    """Stores events once in the log of a storage, by claims."""

    logs: EventLogs
    claims: EidClaims
    positions: KnownPositions
    clock: Clock
    storage_id: str
    threads: CallThreads

    async def append_once(
        self, topic: str, batches: Mapping[int, Sequence[Record]], ids: EventIds
    ) -> Mapping[int, AppendResult]:
        append = ClaimedAppend(
            logs=self.logs,
            claims=self.claims,
            positions=self.positions,
            clock=self.clock,
            storage_id=self.storage_id,
            topic=topic,
            batches=batches,
            ids=ids,
        )
        return await ThreadCall(self.threads, lambda: run_steps(append.steps()))


class LogDeduplication:
    """Finds for each storage the log that stores events once: the storage's own log, or one that uses claims.

    `open_claims` opens the store of claims, or returns None where there is none.
    """

    def __init__(self, logs: EventLogs, open_claims: Callable[[], EidClaims | None], clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._open_claims = open_claims
        self._opening = threading.Lock()
        self._claims: EidClaims | None = None
        self._positions = KnownPositions(clock)
        self._threads = CallThreads("nakadi-claims")
        # Several threads replace and read entries, each as a whole. An entry for another log than the current one is
        # not used.
        self._deduplicating: dict[str, tuple[EventLog, DeduplicatingLog]] = {}

    def find(self, storage_id: str) -> DeduplicatingLog | None:
        event_log = self._logs.for_storage(storage_id)
        known = self._deduplicating.get(storage_id)
        if known is not None and known[0] is event_log:
            return known[1]
        if isinstance(event_log, DeduplicatingLog):  # this check takes as long as several events
            self._deduplicating[storage_id] = event_log, event_log
            return event_log
        with self._opening:
            claims = self._claims = self._claims or self._open_claims()
        if claims is None:
            return None
        return ClaimingLog(
            logs=self._logs,
            claims=claims,
            positions=self._positions,
            clock=self._clock,
            storage_id=storage_id,
            threads=self._threads,
        )

    def close(self) -> None:
        """Let calls in progress finish, and close the claims."""
        self._threads.close()
        if self._claims is not None:
            self._claims.close()
