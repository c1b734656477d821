"""How far the tables that jobs make of the archive are behind it, and when a job has to be started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from nakadi.event_types.documents import TABLES_KIND, TableState, table_state_of
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.rules import MATERIALIZE_ANNOTATION
from nakadi.model.event_type import EventType
from nakadi.model.events import TopicPartition
from nakadi.ports.clock import Clock
from nakadi.ports.log_index import LogIndex
from nakadi.ports.registry import ABSENT, ChangedMeanwhile, Put, Registry

STARTS_KIND = "table-jobs"
"""Documents that say when housekeeping started a job."""


class TableLags(Struct, frozen=True, kw_only=True):
    """Looks at all tables now and then; `lags` and `states` are what it found the last time, by event type.

    The lag of a table is the age of the oldest archived event that it does not have. It also grows where no job runs
    any more, which the latency that jobs measure does not.
    """

    event_types: EventTypes
    registry: Registry
    index: LogIndex
    clock: Clock
    always: bool = False
    """Whether there may be tables to make where no job has made one yet."""
    lags: dict[str, float] = field(default_factory=dict)
    states: dict[str, TableState] = field(default_factory=dict)

    def look(self) -> None:
        """Measure the lag of each table. It costs little where nothing is in the archive that is in no table."""
        states = {each.key: table_state_of(each.body) for each in self.registry.list(TABLES_KIND)}
        found: dict[str, float] = {}
        known: dict[str, TableState] = {}
        if states or self.always:
            event_types = [
                each for each in self.event_types.all() if each.annotations.get(MATERIALIZE_ANNOTATION) != "off"
            ]
            now = self.clock.now().timestamp()
            for event_type, oldest in self._oldest_unread(event_types, states):
                found[event_type.name] = 0.0 if oldest is None else max(0.0, now - oldest / 1e6)
            known = {each.name: states[each.id] for each in event_types if each.id in states}
        # In one step each, for the threads that read metrics.
        self.lags.update(found)
        self.states.update(known)
        for gone in self.lags.keys() - found.keys():
            del self.lags[gone]
        for gone in self.states.keys() - known.keys():
            del self.states[gone]

    @property
    def greatest_lag(self) -> float:
        """The greatest lag of all tables, in seconds."""
        return max(self.lags.values(), default=0.0)

    def claim_start(self, job: str, after_seconds: float) -> bool:
        """Whether a job is to be started now: an event waits for so long, and no process started it lately.

        What a run did not mend is not tried again at once: the pause grows with the lag, so that a table that cannot be
        written costs a few runs a day and not hundreds.
        """
        lag = self.greatest_lag
        if lag < after_seconds:
            return False
        now = self.clock.now()
        document = self.registry.get(STARTS_KIND, job)
        if document is not None:
            since = now - datetime.fromisoformat(document.body["started_at"])
            if since.total_seconds() < max(after_seconds, lag / 4):
                return False
        put = Put(STARTS_KIND, job, {"started_at": now.isoformat()}, document.revision if document else ABSENT)
        try:
            self.registry.write(put)
        except ChangedMeanwhile:
            # Another process has started it.
            return False
        return True

    def _oldest_unread(
        self, event_types: Sequence[EventType], states: Mapping[str, TableState]
    ) -> Iterator[tuple[EventType, int | None]]:
        """When the oldest event was stored that the table of an event type does not have, in microseconds."""
        places = {
            each.id: [(one.topic, number) for one in each.timelines for number in range(one.partitions)]
            for each in event_types
        }
        heads = self.index.heads([place for found in places.values() for place in found])
        for event_type in event_types:
            state = states.get(event_type.id)
            following = state.following if state else {}
            unread = [
                self._first_archived_since(place, following.get(place, 0))
                for place in places[event_type.id]
                if heads[place].counted.next > following.get(place, 0)
            ]
            yield event_type, min((since for since in unread if since is not None), default=None)

    def _first_archived_since(self, place: TopicPartition, offset: int) -> int | None:
        """When the first archived event from an offset on was stored; None if there is none any more."""
        segment = self.index.segment(*place, offset)
        if segment is None or segment.end <= offset:
            segment = next(iter(self.index.segments(*place, offset, 1)), None)
        return None if segment is None or segment.archived is None else segment.since
