"""Measures the lag of tables behind archived events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from nakadi.event_types.compaction_guard import index_segments_from
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.table_objective import (
    TableObjective,
    TableObjectiveStatus,
    WaitingPartition,
    table_windows,
    valid_table_objective,
)
from nakadi.event_types.table_states import TABLE_STATES_KIND, TableState, table_state_from_body
from nakadi.model.annotations import (
    MATERIALIZE_ANNOTATION,
)
from nakadi.model.event_type import EventType
from nakadi.model.events import TopicPartition
from nakadi.model.objective import lasting_burn_rate
from nakadi.ports.clock import Clock
from nakadi.ports.log_index import LogIndex
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, PutDocument, Registry

TABLE_JOB_STARTS_KIND = "table-jobs"
"""The kind of the documents that record when housekeeping started a job."""


class TableLagMonitor(Struct, frozen=True, kw_only=True):
    """Measures the lags of all tables from time to time.

    `lag_seconds_by_event_type`, `table_states_by_event_type` and, for tables with an objective,
    `objectives_by_event_type` are its last results.

    The lag of a table is the age of the oldest archived event that it lacks. It also grows if no job runs, unlike the
    latency that jobs measure.
    """

    event_types: EventTypes
    registry: Registry
    log_index: LogIndex
    clock: Clock
    measures_without_tables: bool = False
    """Whether there may be event types whose tables no job has created yet."""
    lag_seconds_by_event_type: dict[str, float] = field(default_factory=dict)
    table_states_by_event_type: dict[str, TableState] = field(default_factory=dict)
    objectives_by_event_type: dict[str, TableObjectiveStatus] = field(default_factory=dict)

    def measure(self) -> None:
        """Measure the lag of each table. This costs little if tables have all archived events."""
        states = {each.key: table_state_from_body(each.body) for each in self.registry.list(TABLE_STATES_KIND)}
        found: dict[str, float] = {}
        known: dict[str, TableState] = {}
        objectives: dict[str, TableObjectiveStatus] = {}
        if states or self.measures_without_tables:
            event_types = [
                each for each in self.event_types.all() if each.annotations.get(MATERIALIZE_ANNOTATION) != "off"
            ]
            for event_type, slowest in self._slowest_partitions(event_types, states):
                found[event_type.name] = 0.0 if slowest is None else slowest.lag_seconds
                objective = valid_table_objective(event_type)
                if objective is not None:
                    objectives[event_type.name] = self._objective_status(objective, states.get(event_type.id), slowest)
            known = {each.name: states[each.id] for each in event_types if each.id in states}
        # The results are exchanged in single steps, because other threads read the metrics meanwhile.
        self.lag_seconds_by_event_type.update(found)
        self.table_states_by_event_type.update(known)
        self.objectives_by_event_type.update(objectives)
        for gone in self.lag_seconds_by_event_type.keys() - found.keys():
            del self.lag_seconds_by_event_type[gone]
        for gone in self.table_states_by_event_type.keys() - known.keys():
            del self.table_states_by_event_type[gone]
        for gone in self.objectives_by_event_type.keys() - objectives.keys():
            del self.objectives_by_event_type[gone]

    def objective_status(self, event_type: EventType) -> TableObjectiveStatus | None:
        """How well a table meets its objective now; None if the event type states none."""
        objective = valid_table_objective(event_type)
        if objective is None:
            return None
        state = self.event_types.table_state(event_type)
        states = {} if state is None else {event_type.id: state}
        [(_, slowest)] = self._slowest_partitions([event_type], states)
        return self._objective_status(objective, state, slowest)

    def close(self) -> None:
        """Close the log index, which the monitor owns."""
        self.log_index.close()

    @property
    def greatest_lag_seconds(self) -> float:
        return max(self.lag_seconds_by_event_type.values(), default=0.0)

    @property
    def greatest_burn_rate(self) -> float:
        """The greatest lasting burn rate of a table with an objective."""
        return max((lasting_burn_rate(each.windows) for each in self.objectives_by_event_type.values()), default=0.0)

    @property
    def greatest_pressure(self) -> float:
        return max((each.pressure for each in self.objectives_by_event_type.values()), default=0.0)

    def greatest_latency_seconds(self, within: timedelta) -> float:
        """The greatest latency in seconds of the tables that changed lately. Other tables had no waiting events."""
        since = self.clock.now() - within
        changed = (each for each in self.table_states_by_event_type.copy().values() if each.updated_at >= since)
        return max((each.latency_seconds for each in changed if each.latency_seconds is not None), default=0.0)

    def defects(self, within: timedelta) -> Mapping[tuple[str, ...], int]:
        """The numbers of defects in the events of runs that ended lately, by event type and kind."""
        since = self.clock.now() - within
        return {
            (name, kind): count
            for name, state in self.table_states_by_event_type.copy().items()
            if state.last_run is not None and state.last_run.ended_at >= since
            for kind, count in state.last_run.defects.items()
        }

    def claim_job_start(self, job: str, after_seconds: float) -> bool:
        """Whether to start a job now: an event has waited long enough, and no process started a job lately.

        If a run does not help, the next one waits longer: the pause grows with the lag, so that a table that cannot be
        written costs a few runs a day instead of hundreds.
        """
        lag = self.greatest_lag_seconds
        if lag < after_seconds:
            return False
        now = self.clock.now()
        document = self.registry.get(TABLE_JOB_STARTS_KIND, job)
        if document is not None:
            since = now - datetime.fromisoformat(document.body["started_at"])
            if since.total_seconds() < max(after_seconds, lag / 4):
                return False
        put = PutDocument(
            TABLE_JOB_STARTS_KIND,
            job,
            {"started_at": now.isoformat()},
            document.revision if document else ABSENT_REVISION,
        )
        try:
            self.registry.write(put)
        except ChangedMeanwhile:
            # Another process has started the job.
            return False
        return True

    def _objective_status(
        self, objective: TableObjective, state: TableState | None, slowest: WaitingPartition | None
    ) -> TableObjectiveStatus:
        windows = table_windows(objective, state.freshness if state else None, self.clock.now())
        return TableObjectiveStatus(objective=objective, windows=windows, slowest=slowest)

    def _slowest_partitions(
        self, event_types: Sequence[EventType], states: Mapping[str, TableState]
    ) -> Iterator[tuple[EventType, WaitingPartition | None]]:
        """For each event type, the partition with the oldest archived event that its table lacks."""
        places = {
            each.id: [(one.topic, number) for one in each.timelines for number in range(one.partitions)]
            for each in event_types
        }
        heads = self.log_index.index_heads([place for found in places.values() for place in found])
        for event_type in event_types:
            state = states.get(event_type.id)
            following = state.next_offsets if state else {}
            unread = [
                (self._stored_at_of_first_archived(place, following.get(place, 0)), place)
                for place in places[event_type.id]
                if heads[place].state.next_offset > following.get(place, 0)
            ]
            oldest = min(((since, place) for since, place in unread if since is not None), default=None)
            yield event_type, None if oldest is None else self._waiting_partition(*oldest)

    def _waiting_partition(self, stored_at: int, topic_partition: TopicPartition) -> WaitingPartition:
        waited = max(0.0, self.clock.now().timestamp() - stored_at / 1e6)
        return WaitingPartition(str(topic_partition[1]), waited)

    def _stored_at_of_first_archived(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """When the first archived event at or after an offset was stored; None if there is none."""
        segment = next(index_segments_from(self.log_index, topic_partition, offset), None)
        return None if segment is None or segment.location is None else segment.first_stored_at
