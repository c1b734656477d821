"""The one place that knows every room: it wires a broker from settings.

What takes long to load is imported when it is first asked for: a table in docs/architecture.md says what, and why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import cached_property, partial
from socket import socket
from typing import TYPE_CHECKING

from nakadi.app.authentication import make_authentication
from nakadi.app.engines import (
    data_file_paths,
    open_coordination,
    open_eid_claims,
    open_event_log,
    open_log_index,
    open_registry,
)
from nakadi.app.settings import Settings
from nakadi.common.caching import ChangeCounter, ChangeCountingRegistry, ChangeWatch, ChangeWatchOfSeveralProcesses
from nakadi.common.chores import run_and_log_failure
from nakadi.common.metrics import Metrics
from nakadi.common.work import LongWorkQueue
from nakadi.event_types.compaction_guard import CompactionGuard
from nakadi.event_types.deletion import DeletedEventTypeCleanup, GetDependents
from nakadi.event_types.housekeeping import Housekeeping
from nakadi.event_types.lost_events import LostEventsRecovery
from nakadi.event_types.snapshot import CursorResolver
from nakadi.event_types.system_event_type_definitions import SystemEventTypeOwner, system_event_type_definitions
from nakadi.event_types.system_event_types import SystemEventTypes
from nakadi.event_types.table_lag import TableLagMonitor
from nakadi.event_types.timelines import Timelines
from nakadi.model.outcomes import NotFound, Unavailable
from nakadi.ports.clock import Clock, SystemClock
from nakadi.ports.coordination import Coordination
from nakadi.ports.event_log import DelayedIndexLog, PushConsumerLog

if TYPE_CHECKING:
    from nakadi.app.audit import Audit
    from nakadi.app.deliveries import DeliveryServices
    from nakadi.app.registration import RegistrationServices
    from nakadi.app.subscriptions import SubscriptionRequests, SubscriptionServices
    from nakadi.http.server import SideTask
    from nakadi.http.views import View
    from nakadi.model.event_type import EventType, EventTypeDraft
    from nakadi.publishing.batch import BatchOutcome
    from nakadi.publishing.claimed_append import LogDeduplication
    from nakadi.publishing.publisher import Publisher, ValidatorCache
    from nakadi.publishing.system_events import KpiCollector
    from nakadi.streaming.streams import EventStreams
    from nakadi.subscriptions.api.resource import SubscribedEventTypes
    from nakadi.subscriptions.stream.streams import SubscriptionStreams


from nakadi.app.core import BrokerCore, WrapLog, attributes_from_pairs, log_dependencies

log = logging.getLogger(__name__)

ReportDroppedKpis = Callable[[int], None]


def open_broker(
    settings: Settings,
    clock: Clock | None = None,
    wrap_log: WrapLog = lambda log: log,
    *,
    counter: ChangeCounter | None = None,
    committer: socket | None = None,
) -> BrokerServices:
    """Open what the settings name. The rest is made when it is first asked for.

    `wrap_log` may put something of one's own around the event log, such as faults on demand. A broker of several
    processes has a `counter` of their changes, and in all but one of them a connection to the one that commits.
    """
    clock = clock or SystemClock()
    authenticate = make_authentication(settings, clock)
    metrics = Metrics(clock.monotonic(), settings.max_metric_names)
    registry = open_registry(settings.registry)
    if counter is None:
        watch = ChangeWatch(registry.change_counters, clock)
    else:
        registry = ChangeCountingRegistry(registry, counter)
        watch = ChangeWatchOfSeveralProcesses(registry.change_counters, clock, counter.counts_of_all_processes)
    try:
        event_log = open_event_log(
            settings.event_log, clock, log_dependencies(settings, registry, clock, watch, metrics, committer)
        )
    except BaseException:
        registry.close()
        raise
    broker = BrokerServices(
        settings=settings,
        clock=clock,
        registry=registry,
        watch=watch,
        event_log=wrap_log(event_log),
        wrap_log=wrap_log,
        authenticate=authenticate,
        metrics=metrics,
    )
    metrics.find_deleted = broker.find_deleted_event_types
    return broker


class BrokerServices(BrokerCore):
    """Every part of a broker, each made once."""

    _report_dropped_kpis: ReportDroppedKpis | None = None

    read_metrics: Callable[[], Metrics] | None = None
    """Reads the metrics of all processes of this broker, where there are several."""

    def find_deleted_event_types(self, names: Collection[str]) -> Collection[str]:
        """Which of these names no event type has. None, if the registry does not answer."""
        try:
            return [name for name in names if not self._has_event_type(name)]
        except Unavailable:
            return ()

    def _has_event_type(self, name: str) -> bool:
        try:
            self.event_types.cached(name)
        except NotFound:
            return False
        return True

    def read_own_metrics(self) -> Metrics:
        """The metrics of this process, without those of event types that are deleted."""
        self.metrics.forget_deleted_event_types()
        return self.metrics

    def prepare_for_requests(self) -> None:
        """Make what is to be there before the first request. What fails is logged, and done by the housekeeping."""
        if self.settings.auth != "off" and not self.settings.default_admin:
            log.warning("NAKADI_DEFAULT_ADMIN is not set: only stored administrators have administrator permissions")
        self.create_missing_event_types()

    def create_missing_event_types(self) -> None:
        """Make those of the broker's own that are missing; called again when a feature is switched on."""
        try:
            self.system_event_types.create_missing()
        except Unavailable:
            log.warning("Looking up the broker's own event types failed", exc_info=True)

    @property
    def side_tasks(self) -> Sequence[SideTask]:
        """What a server of this broker runs beside its connections."""
        services = self.delivery_services
        return [] if services.safe is None else [services.dispatcher.run]

    def close(self) -> None:
        """Give everything back, in the order in which the parts lean on each other."""
        if "delivery_services" in vars(self):
            self.delivery_services.close()
        if "subscription_streams" in vars(self):
            self.subscription_streams.close()
        if "kpi_collector" in vars(self):
            self.kpi_collector.close()
        if "event_streams" in vars(self):
            self.event_streams.close()
        if "coordination" in vars(self):
            self.coordination.close()
        if (lags := vars(self).get("table_lag_monitor")) is not None:
            lags.log_index.close()
        if "deduplication" in vars(self):
            self.deduplication.close()
        self.logs.close()
        self.registry.close()

    # Event types

    @cached_property
    def deduplication(self) -> LogDeduplication:
        from nakadi.publishing.claimed_append import LogDeduplication

        return LogDeduplication(self.logs, partial(open_eid_claims, self.settings.registry), self.clock)

    @cached_property
    def system_event_types(self) -> SystemEventTypes:
        settings = self.settings
        closed = settings.auth != "off"

        def owner_of(owner: str, members: tuple[tuple[str, str], ...]) -> SystemEventTypeOwner:
            """The members in the settings; else administrators, or all subjects without authentication."""
            return SystemEventTypeOwner(
                owning_application=owner,
                permitted_subjects=attributes_from_pairs(
                    members or (settings.default_admins if closed else (("*", "*"),))
                ),
            )

        return SystemEventTypes(
            definitions=system_event_type_definitions(
                dead_letter_queue=settings.dead_letter_queue,
                dead_letter_owner=owner_of(settings.dead_letter_owning_application, settings.dead_letter_authorization),
                audit_log_owner=owner_of(settings.audit_owning_application, settings.audit_authorization),
                kpi_owner=owner_of(settings.kpi_owning_application, settings.kpi_authorization),
            ),
            event_types=self.event_types,
            features=self.features,
            register=self._register_system_event_type,
            is_authentication_on=closed,
        )

    def _register_system_event_type(self, draft: EventTypeDraft) -> None:
        """What creation needs is loaded when an event type is found missing, which is once in a deployment's life."""
        self.registration.creation.create_system_event_type(draft)

    @cached_property
    def deleted_event_type_cleanup(self) -> DeletedEventTypeCleanup:
        return DeletedEventTypeCleanup(self.registry, self.logs)

    @cached_property
    def timelines(self) -> Timelines:
        return Timelines(
            event_types=self.event_types,
            storages=self.storages,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            deduplication=self.deduplication,
            clock=self.clock,
        )

    @cached_property
    def registration(self) -> RegistrationServices:
        from nakadi.app.registration import make_registration_services

        made = make_registration_services(
            self,
            deduplication=self.deduplication,
            timelines=self.timelines,
            deleted_event_type_cleanup=self.deleted_event_type_cleanup,
            get_dependents=self.get_dependents,
        )
        self.with_turn_metrics("schemas", made.long_work_queue)
        return made

    # Housekeeping

    @cached_property
    def housekeeping(self) -> Housekeeping:
        watch = self.subscription_services.stalled_subscriptions
        stop_requested = threading.Event()
        self.metrics.stalled_subscriptions.add_source(lambda: {(): len(watch.stalled_ids)})
        return Housekeeping(
            event_types=self.event_types,
            timelines=self.timelines,
            deleted_event_type_cleanup=self.deleted_event_type_cleanup,
            logs=self.logs,
            clock=self.clock,
            further_tasks={
                "lost events": self.lost_events_recovery.run,
                "the broker's own event types": self.system_event_types.create_missing,
                "deleted subscriptions": self.subscription_services.deleted_subscription_cleanup.clean_up_all,
                "redriven events": self.subscription_services.redrive_attachment.run,
                "stalled subscriptions": watch.check_all,
                "orphaned consumers": self._remove_orphaned_consumers,
                **({} if self.table_lag_monitor is None else {"tables": self.table_lag_monitor.measure}),
            },
            compaction_guard=self._compaction_guard(),
            metrics=self.metrics,
            stop_requested=stop_requested,
        )

    @property
    def has_data_files(self) -> bool:
        return bool(data_file_paths(self.settings.store_urls))

    def wipe_data_files(self) -> None:
        """Complete the wipes that erasures have requested, as far as readers let it."""
        from nakadi.engines.sqlite.wiping import BROKER_PATIENCE_SECONDS, DataFileWiper

        for path in data_file_paths(self.settings.store_urls):
            wiper = DataFileWiper(path, is_stopping=self.housekeeping.stop_requested.is_set)
            run_and_log_failure("wipe", str(path), partial(wiper.run, BROKER_PATIENCE_SECONDS))

    def _compaction_guard(self) -> CompactionGuard | None:
        longest = timedelta(hours=self.settings.compaction_wait_hours)
        if not self.settings.archive or self.table_lag_monitor is None:
            return None
        return CompactionGuard(
            event_types=self.event_types, log_index=self.table_lag_monitor.log_index, longest_delay=longest
        )

    @cached_property
    def table_lag_monitor(self) -> TableLagMonitor | None:
        """How far tables are behind the archive; None where no job can see an archive."""
        if self.settings.log_index_url.startswith("memory:"):
            return None
        lags = TableLagMonitor(
            event_types=self.event_types,
            registry=self.registry,
            log_index=open_log_index(self.settings.log_index_url),
            clock=self.clock,
            measures_without_tables=bool(self.settings.table_job),
        )
        metrics = self.metrics
        metrics.table_lag.add_named_source(lambda: dict(lags.lag_seconds_by_event_type))
        states = lags.table_states_by_event_type
        metrics.table_rows.add_named_source(lambda: {name: each.row_count for name, each in states.copy().items()})
        metrics.table_misfits.add_named_source(
            lambda: {name: each.misfit_count for name, each in states.copy().items()}
        )
        metrics.table_missing.add_named_source(
            lambda: {name: each.unreadable_count for name, each in states.copy().items()}
        )
        metrics.table_latency.add_named_source(
            lambda: {
                name: each.latency_seconds for name, each in states.copy().items() if each.latency_seconds is not None
            }
        )
        return lags

    def _remove_orphaned_consumers(self) -> None:
        for storage in self.storages.all():
            try:
                event_log = self.logs.for_storage(storage.id)
                if isinstance(event_log, PushConsumerLog):
                    event_log.remove_orphaned_consumers()
            except Unavailable:
                log.warning("Listing the consumers of storage %s failed", storage.id, exc_info=True)

    def run_housekeeping(self) -> timedelta | None:
        """A round of housekeeping; then how late the log indexers are, as `measure_index_lag` says."""
        self.housekeeping.run()
        self.metrics.forget_deleted_event_types()
        return self.measure_index_lag()

    @cached_property
    def lost_events_recovery(self) -> LostEventsRecovery:
        return LostEventsRecovery(
            event_types=self.event_types,
            storages=self.storages,
            logs=self.logs,
            clock=self.clock,
            report_new_timeline=self._report_lost_events,
        )

    def _report_lost_events(self, before: EventType, after: EventType) -> None:
        """What tells the audit log is loaded when there is something to tell, which is next to never."""
        from nakadi.app.audit import timelines_view

        self.audit.publish_own_change("timeline", before.name, timelines_view(before), timelines_view(after))

    def measure_index_lag(self) -> timedelta | None:
        """How late the latest of all log indexers is; None where there is none, or where one cannot be measured."""
        lags: list[timedelta] = []
        for storage in self.storages.all():
            try:
                event_log = self.logs.for_storage(storage.id)
                if isinstance(event_log, DelayedIndexLog):
                    lags.append(event_log.measure_index_lag())
            except Unavailable:
                log.warning("Measuring the lag of the indexer for storage %s failed", storage.id, exc_info=True)
                return None
        latest = max(lags, default=None)
        if latest is not None:
            self.metrics.index_lag.set(latest.total_seconds())
        return latest

    @cached_property
    def cursor_resolver(self) -> CursorResolver:
        return CursorResolver(self.logs)

    @cached_property
    def validator_cache(self) -> ValidatorCache:
        from nakadi.publishing.publisher import ValidatorCache

        validators = ValidatorCache()
        self.metrics.add_cache_sources("validators", lambda: validators.hits, lambda: validators.misses)
        return validators

    @cached_property
    def publisher(self) -> Publisher:
        from nakadi.publishing.batch import BatchLimits
        from nakadi.publishing.publisher import Publisher

        return Publisher(
            event_types=self.event_types,
            validators=self.validator_cache,
            permissions=self.permissions,
            features=self.features,
            logs=self.logs,
            deduplication=self.deduplication,
            clock=self.clock,
            limits=BatchLimits(
                max_events=self.settings.max_batch_events,
                max_event_bytes=self.settings.max_event_bytes,
                max_steps=self.settings.max_batch_steps,
            ),
            long_work_queue=self.with_turn_metrics("publishing", LongWorkQueue()),
            metrics=self.metrics,
        )

    @cached_property
    def kpi_collector(self) -> KpiCollector:
        from nakadi.publishing.system_events import (
            BROKER_SUBJECT,
            KPI_WRITE_INTERVAL_SECONDS,
            KpiCollector,
            name_hasher,
        )

        def publish(event_type: str, body: bytes) -> BatchOutcome:
            return self.publisher.publish(event_type, body, BROKER_SUBJECT, flow_id="")

        def count(what: str, number: int) -> None:
            self.metrics.kpi_figures.add(number, what)
            if self._report_dropped_kpis is not None and what == "dropped":
                self._report_dropped_kpis(number)

        return KpiCollector(
            features=self.features,
            publish=publish,
            clock=self.clock,
            hash_name=name_hasher(self.settings.hash_salt),
            count=count,
            write_interval_seconds=KPI_WRITE_INTERVAL_SECONDS if self._report_dropped_kpis is None else None,
        )

    @cached_property
    def audit(self) -> Audit:
        from nakadi.app.audit import Audit, AuditedResources
        from nakadi.publishing.system_events import SystemEventPublisher, name_hasher

        resources = AuditedResources(
            event_types=self.event_types,
            storages=self.storages,
            features=self.features,
            admins=self.admins,
            blacklist=self.blacklist,
            # Subscriptions are loaded when one of them changes.
            get_subscriptions=lambda: self.subscription_services.subscriptions,
            get_parked_events=lambda: self.subscription_requests.parked_events,
            get_coordination=lambda: self.coordination,
            read_sink=self._read_sink,
        )
        events = SystemEventPublisher(event_types=self.system_event_types, publisher=self.publisher, clock=self.clock)
        return Audit(self.features, events, resources.audited_operations(), name_hasher(self.settings.hash_salt))

    def _read_sink(self, subscription_id: str) -> View | None:
        return self.delivery_services.read_sink(subscription_id)

    def write_kpis_only_when_asked(self, report_dropped: ReportDroppedKpis) -> None:
        """For a process whose threads stand still between requests; to be called before anything is made.

        `report_dropped` is called with the number of figures that found no room, or could not be written.
        """
        self._report_dropped_kpis = report_dropped

    @cached_property
    def event_streams(self) -> EventStreams:
        from nakadi.streaming.access import ReadAccess
        from nakadi.streaming.streams import EventStreams

        return EventStreams(
            event_types=self.event_types,
            access=ReadAccess(self.event_types, self.permissions, self.features),
            cursor_resolver=self.cursor_resolver,
            logs=self.logs,
            clock=self.clock,
            max_stream_seconds=self.settings.longest_stream_seconds or None,
            longest_silence_seconds=self.settings.longest_silence_seconds or None,
            metrics=self.metrics,
        )

    @cached_property
    def get_dependents(self) -> GetDependents:
        return lambda: self.subscribed_event_types

    @cached_property
    def coordination(self) -> Coordination:
        return open_coordination(self.settings.coordination or self.settings.registry)

    @cached_property
    def subscription_services(self) -> SubscriptionServices:
        from nakadi.app.subscriptions import make_subscription_services

        return make_subscription_services(self, self.coordination, self.cursor_resolver)

    @cached_property
    def subscribed_event_types(self) -> SubscribedEventTypes:
        from nakadi.app.subscriptions import make_subscribed_event_types

        return make_subscribed_event_types(self, self.subscription_services)

    @cached_property
    def subscription_requests(self) -> SubscriptionRequests:
        from nakadi.app.subscriptions import make_subscription_requests

        return make_subscription_requests(
            self,
            self.subscription_services,
            self.coordination,
            self.cursor_resolver,
            self.delivery_services.sinks,
        )

    @cached_property
    def delivery_services(self) -> DeliveryServices:
        from nakadi.app.deliveries import DeliveryServices

        return DeliveryServices(
            core=self,
            subscriptions=self.subscription_services.subscriptions,
            get_coordination=lambda: self.coordination,
            get_streams=lambda: self.subscription_streams,
            get_kpi_collector=lambda: self.kpi_collector,
        )

    @cached_property
    def subscription_streams(self) -> SubscriptionStreams:
        from nakadi.streaming.access import ReadAccess
        from nakadi.subscriptions.stream.admission import StreamAdmission
        from nakadi.subscriptions.stream.calls import DeadLetterPublisher
        from nakadi.subscriptions.stream.streams import StreamBounds, SubscriptionStreams

        settings = self.settings
        return SubscriptionStreams(
            admission=StreamAdmission(
                subscription_repository=self.subscription_services.subscriptions,
                event_types=self.event_types,
                permissions=self.permissions,
                initialisation=self.subscription_services.offset_initialisation,
                execute_reset=self.subscription_services.reset_execution.try_to_execute,
            ),
            coordination=self.coordination,
            cursor_resolver=self.cursor_resolver,
            logs=self.logs,
            access=ReadAccess(self.event_types, self.permissions, self.features),
            dead_letters=DeadLetterPublisher(
                system_event_types=self.system_event_types,
                publisher=self.publisher,
                clock=self.clock,
                event_type_name=settings.dead_letter_queue,
                metrics=self.metrics,
            ),
            clock=self.clock,
            bounds=StreamBounds(
                max_commit_seconds=settings.max_commit_timeout_seconds,
                max_stream_seconds=settings.longest_stream_seconds or None,
                max_seconds_between_lines=settings.longest_silence_seconds or None,
                redrive_event_type=settings.dead_letter_redrive,
            ),
            metrics=self.metrics,
        )
