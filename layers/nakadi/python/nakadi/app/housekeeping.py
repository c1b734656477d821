"""Wires housekeeping, and its measurements, from top to bottom."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from nakadi.app.core import BrokerCore
from nakadi.app.engines import is_shared_store, log_index_url, open_log_index
from nakadi.app.subscriptions import SubscriptionServices
from nakadi.common.metrics import Metrics
from nakadi.event_types.compaction_guard import CompactionGuard
from nakadi.event_types.housekeeping import Housekeeping
from nakadi.event_types.lost_events import LostEventsRecovery
from nakadi.event_types.system_event_types import SystemEventTypes
from nakadi.event_types.table_lag import TableLagMonitor
from nakadi.event_types.timelines import Timelines
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import DelayedIndexLog, PushConsumerLog
from nakadi.rehearsals.documents import remove_expired_rehearsals

DEFECTS_WITHIN = timedelta(hours=1)
"""How long metrics show the faults of a run's events."""

log = logging.getLogger(__name__)


def make_housekeeping(
    core: BrokerCore,
    *,
    timelines: Timelines,
    system_event_types: SystemEventTypes,
    lost_events_recovery: LostEventsRecovery,
    table_lag_monitor: TableLagMonitor | None,
    subscription_services: SubscriptionServices,
) -> Housekeeping:
    troubled = subscription_services.troubled_subscriptions
    core.metrics.stalled_subscriptions.add_source(lambda: {(): len(troubled.stalled_ids)})
    core.metrics.late_subscriptions.add_source(lambda: {(): len(troubled.late_ids)})
    return Housekeeping(
        event_types=core.event_types,
        timelines=timelines,
        deleted_event_type_cleanup=core.deleted_event_type_cleanup,
        logs=core.logs,
        clock=core.clock,
        further_tasks={
            "lost events": lost_events_recovery.run,
            "the broker's own event types": system_event_types.create_missing,
            "deleted subscriptions": subscription_services.deleted_subscription_cleanup.clean_up_all,
            "redriven events": subscription_services.redrive_attachment.run,
            "stalled and late subscriptions": troubled.check_all,
            "rehearsals": partial(remove_expired_rehearsals, core.registry, core.clock),
            "orphaned consumers": partial(_remove_orphaned_consumers, core),
            **({} if table_lag_monitor is None else {"tables": table_lag_monitor.measure}),
        },
        compaction_guard=_make_compaction_guard(core, table_lag_monitor),
        metrics=core.metrics,
    )


def make_lost_events_recovery(
    core: BrokerCore, report_new_timeline: Callable[[EventType, EventType], None]
) -> LostEventsRecovery:
    return LostEventsRecovery(
        event_types=core.event_types,
        storages=core.storages,
        logs=core.logs,
        clock=core.clock,
        report_new_timeline=report_new_timeline,
    )


def make_table_lag_monitor(core: BrokerCore) -> TableLagMonitor | None:
    """The monitor of table lags; None if no job can read an archive."""
    index_url = log_index_url(core.settings)
    if not is_shared_store(index_url):
        return None
    monitor = TableLagMonitor(
        event_types=core.event_types,
        registry=core.registry,
        log_index=open_log_index(index_url),
        clock=core.clock,
        measures_without_tables=bool(core.settings.table_job),
    )
    _show_tables_in_metrics(monitor, core.metrics)
    return monitor


def measure_index_lag(core: BrokerCore) -> timedelta | None:
    """The lag of the log indexer that is furthest behind; None without log indexers, or if the lag of one cannot be
    measured.
    """
    lags: list[timedelta] = []
    for storage in core.storages.all():
        try:
            event_log = core.logs.for_storage(storage.id)
            if isinstance(event_log, DelayedIndexLog):
                lags.append(event_log.measure_index_lag())
        except Unavailable:
            log.warning("Measuring the lag of the indexer for storage %s failed", storage.id, exc_info=True)
            return None
    latest = max(lags, default=None)
    if latest is not None:
        core.metrics.index_lag.set(latest.total_seconds())
    return latest


def _show_tables_in_metrics(monitor: TableLagMonitor, metrics: Metrics) -> None:
    # Other threads read metrics while housekeeping updates these dictionaries: copying one is a single step for
    # Python's threads.
    states = monitor.table_states_by_event_type
    metrics.table_lag.add_named_source(lambda: dict(monitor.lag_seconds_by_event_type))
    metrics.table_rows.add_named_source(lambda: {name: each.row_count for name, each in states.copy().items()})
    metrics.table_misfits.add_named_source(lambda: {name: each.misfit_count for name, each in states.copy().items()})
    metrics.table_missing.add_named_source(
        lambda: {name: each.unreadable_count for name, each in states.copy().items()}
    )
    metrics.table_defects.add_bounded_source(lambda: monitor.defects(DEFECTS_WITHIN))
    objectives = monitor.objectives_by_event_type
    metrics.table_pressure.add_named_source(lambda: {name: each.pressure for name, each in objectives.copy().items()})
    metrics.table_burn_rate.add_bounded_source(
        lambda: {
            (name, str(window.minutes)): window.burn_rate
            for name, each in objectives.copy().items()
            for window in each.windows
        }
    )
    metrics.table_latency.add_named_source(
        lambda: {name: each.latency_seconds for name, each in states.copy().items() if each.latency_seconds is not None}
    )


def _make_compaction_guard(core: BrokerCore, table_lag_monitor: TableLagMonitor | None) -> CompactionGuard | None:
    longest_delay = timedelta(hours=core.settings.compaction_wait_hours)
    if not core.settings.archive or table_lag_monitor is None:
        return None
    return CompactionGuard(
        event_types=core.event_types, log_index=table_lag_monitor.log_index, longest_delay=longest_delay
    )


def _remove_orphaned_consumers(core: BrokerCore) -> None:
    for storage in core.storages.all():
        try:
            event_log = core.logs.for_storage(storage.id)
            if isinstance(event_log, PushConsumerLog):
                event_log.remove_orphaned_consumers()
        except Unavailable:
            log.warning("Listing the consumers of storage %s failed", storage.id, exc_info=True)
