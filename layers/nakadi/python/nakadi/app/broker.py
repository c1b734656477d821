"""Wires a broker from settings. This is the only module that uses all packages.

A module that takes long to load is imported when a part that it defines is first used. The table "What is loaded late"
in docs/architecture.md names these modules, and says what loading each of them costs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property, partial
from socket import socket
from typing import TYPE_CHECKING

from nakadi.app.authentication import make_authentication
from nakadi.app.core import (
    BrokerCore,
    WrapLog,
    attributes_from_pairs,
    log_dependencies,
)
from nakadi.app.disks import add_disk_metrics
from nakadi.app.engines import (
    data_file_paths,
    open_coordination,
    open_eid_claims,
    open_event_log,
    open_registry,
)
from nakadi.app.settings import Settings
from nakadi.common.caching import ChangeCounter, ChangeCountingRegistry, ChangeWatch, ChangeWatchOfSeveralProcesses
from nakadi.common.chores import run_and_log_failure
from nakadi.common.metrics import Metrics
from nakadi.common.timed_registry import TimedRegistry
from nakadi.common.tracing import Tracer
from nakadi.common.work import LongWorkQueue
from nakadi.event_types.system_event_type_definitions import SystemEventTypeOwner, system_event_type_definitions
from nakadi.event_types.system_event_types import SystemEventTypes
from nakadi.event_types.timelines import Timelines
from nakadi.model.annotations import TABLE_OBJECTIVE_ANNOTATION
from nakadi.model.outcomes import BadSetting, NotFound, Unavailable
from nakadi.ports.clock import Clock, SystemClock
from nakadi.ports.coordination import Coordination
from nakadi.ports.registry import Registry

if TYPE_CHECKING:
    from nakadi.app.audit import Audit
    from nakadi.app.deliveries import DeliveryServices
    from nakadi.app.open_telemetry_logs import LogExport
    from nakadi.app.open_telemetry_metrics import MetricsExport
    from nakadi.app.registration import RegistrationServices
    from nakadi.app.subscriptions import SubscriptionRequests, SubscriptionServices
    from nakadi.delivery.senders import Sender
    from nakadi.event_types.housekeeping import Housekeeping
    from nakadi.event_types.lost_events import LostEventsRecovery
    from nakadi.event_types.table_lag import TableLagMonitor
    from nakadi.event_types.table_objective import TableObjectiveStatus
    from nakadi.http.server import SideTask
    from nakadi.http.views import View
    from nakadi.model.event_type import EventType, EventTypeDraft
    from nakadi.publishing.batch import BatchOutcome
    from nakadi.publishing.claimed_append import LogDeduplication
    from nakadi.publishing.publisher import Publisher, ValidatorCache
    from nakadi.publishing.system_events import KpiCollector
    from nakadi.queries.processes import QueryProcesses
    from nakadi.rehearsals.rehearsals import Rehearsals
    from nakadi.streaming.streams import EventStreams
    from nakadi.subscriptions.api.resource import SubscriptionsOfEventTypes
    from nakadi.subscriptions.stream.streams import SubscriptionStreams

log = logging.getLogger(__name__)

ReportDroppedKpis = Callable[[int], None]
WrapSender = Callable[["Sender"], "Sender"]

CLOSED_IN_ORDER = (
    "queries",
    "rehearsals",
    "delivery_services",
    "subscription_streams",
    "kpi_collector",
    "event_streams",
    "coordination",
    "table_lag_monitor",
    "deduplication",
)
"""The parts that are created on first use, in the order in which `close` closes those that were created."""


def open_broker(
    settings: Settings,
    clock: Clock | None = None,
    wrap_log: WrapLog = lambda log: log,
    *,
    wrap_sender: WrapSender = lambda sender: sender,
    counter: ChangeCounter | None = None,
    committer: socket | None = None,
    tracer: Tracer | None = None,
) -> BrokerServices:
    """Open the stores and logs that the settings name. Every other part is created at its first use.

    `wrap_log` may wrap the event log, for example to inject faults, and `wrap_sender` may wrap the senders that deliver
    to sinks. Each process of a broker with several passes the `counter` of their changes. Every process that does not
    commit itself also passes the `committer`, a connection to the committing process.
    """
    clock = clock or SystemClock()
    authenticate = make_authentication(settings, clock)
    metrics = Metrics(clock.monotonic(), settings.max_metric_names, lambda: clock.now().timestamp())
    registry: Registry = TimedRegistry(open_registry(settings.registry), metrics.registry_seconds, clock)
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
    add_disk_metrics(settings, metrics)
    broker.wrap_sender = wrap_sender
    broker.tracer = tracer
    try:
        broker.open_log_export_if_set()
    except BaseException:
        broker.close()
        raise
    return broker


def open_tracer_if_set(settings: Settings) -> Tracer | None:
    """The tracer of a server with these settings; None if tracing is off. Raises `BadSetting`."""
    if not settings.traces:
        return None
    with _packages_of_otlp("NAKADI_TRACES"):
        from nakadi.app.open_telemetry import open_tracer

    return open_tracer(settings.traces, settings.traces_percent)


@contextmanager
def _packages_of_otlp(setting: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise BadSetting(f"{setting} needs more packages, pip install 'nakadi-serverless[otel]': {error}") from error


class BrokerServices(BrokerCore):
    """Every part of a broker. Each is created once, at its first use, so a Lambda function loads only the parts that it
    needs. Each part is defined after the parts that it uses, from the parts of event types down to housekeeping.
    """

    wrap_sender: WrapSender
    tracer: Tracer | None = None
    """Makes spans; None while tracing is off."""

    metrics_export: MetricsExport | None = None
    log_export: LogExport | None = None
    """Sends the log of this process over OTLP; None while this export is off."""

    _report_dropped_kpis: ReportDroppedKpis | None = None

    own_url: str = ""
    """The URL at which other processes on this machine reach this broker; empty if it has no server."""

    read_metrics: Callable[[], Metrics] | None = None
    """Reads the metrics of all processes of this broker, if there are several."""

    def prepare_for_requests(self) -> None:
        """Create the broker's own event types; a failure is logged, and housekeeping tries again. Begin to send
        metrics, if the settings say so. Only the first process of a broker calls this. Raises `BadSetting`.
        """
        self._open_metrics_export_if_set()
        if self.settings.auth != "off" and not self.settings.default_admin:
            log.warning("NAKADI_DEFAULT_ADMIN is not set: only stored administrators have administrator permissions")
        self.create_missing_event_types()

    def open_log_export_if_set(self) -> None:
        """Send what this process logs, if the settings say so. Raises `BadSetting`."""
        if self.settings.logs:
            with _packages_of_otlp("NAKADI_LOGS"):
                from nakadi.app.open_telemetry_logs import open_log_export

            self.log_export = open_log_export(self.settings.logs)

    def _open_metrics_export_if_set(self) -> None:
        """Send the metrics of all processes, if the settings say so. Raises `BadSetting`."""
        if self.settings.metrics:
            with _packages_of_otlp("NAKADI_METRICS"):
                from nakadi.app.open_telemetry_metrics import open_metrics_export

            self.metrics_export = open_metrics_export(self.settings.metrics, self.read_metrics or self.read_own_metrics)

    def create_missing_event_types(self) -> None:
        """Create the broker's own event types that are missing. Switching on a feature calls this again."""
        try:
            self.system_event_types.create_missing()
        except Unavailable:
            log.warning("Looking up the broker's own event types failed", exc_info=True)

    @property
    def side_tasks(self) -> Sequence[SideTask]:
        """The tasks that a server of this broker runs while it serves connections. Raises `BadSetting`."""
        services = self.delivery_services
        if services.safe is None:
            return []
        services.require_sdk()
        return [services.dispatcher.run]

    def write_kpis_only_when_asked(self, report_dropped: ReportDroppedKpis) -> None:
        """Write KPIs only on request, because the threads of a function are suspended between requests. Call this
        before any other method.

        `report_dropped` is called with the number of KPIs that did not fit into memory, or could not be written.
        """
        self._report_dropped_kpis = report_dropped

    def run_housekeeping(self) -> timedelta | None:
        """Run a round of housekeeping, and return the result of `measure_index_lag`."""
        self.housekeeping.run()
        self.metrics.forget_deleted_event_types()
        return self.measure_index_lag()

    def measure_index_lag(self) -> timedelta | None:
        """The lag of the log indexer that is furthest behind; None without log indexers, or if the lag of one cannot be
        measured.
        """
        from nakadi.app.housekeeping import measure_index_lag

        return measure_index_lag(self)

    @property
    def has_data_files(self) -> bool:
        return bool(data_file_paths(self.settings.store_urls))

    def wipe_data_files(self) -> None:
        """Complete the wipes that erasures have requested, as far as open readers permit."""
        from nakadi.engines.sqlite.wiping import BROKER_PATIENCE_SECONDS, DataFileWiper

        for path in data_file_paths(self.settings.store_urls):
            wiper = DataFileWiper(path, is_stopping=self.housekeeping.stop_requested.is_set)
            run_and_log_failure("wipe", str(path), partial(wiper.run, BROKER_PATIENCE_SECONDS))

    def find_deleted_event_types(self, names: Collection[str]) -> Collection[str]:
        """Those of the names that belong to no event type; an empty list if the registry does not answer."""
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
        """The metrics of this process, except for deleted event types."""
        self.metrics.forget_deleted_event_types()
        return self.metrics

    def close(self) -> None:
        """Close the parts that were created. A part closes before the parts that it uses."""
        if self.metrics_export is not None:
            self.metrics_export.close()
        for name in CLOSED_IN_ORDER:
            if (part := vars(self).get(name)) is not None:
                part.close()
        self.logs.close()
        self.registry.close()
        if self.tracer is not None:
            self.tracer.close()
        # The export of the log closes last, so that it still sends what the other parts log while they close.
        if self.log_export is not None:
            self.log_export.close()

    # Event types

    @cached_property
    def deduplication(self) -> LogDeduplication:
        from nakadi.publishing.claimed_append import LogDeduplication

        return LogDeduplication(self.logs, partial(open_eid_claims, self.settings.registry), self.clock)

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

        services = make_registration_services(
            self,
            deduplication=self.deduplication,
            timelines=self.timelines,
            get_dependents=lambda: self.subscriptions_of_event_types,
        )
        self.with_turn_metrics("schemas", services.long_work_queue)
        return services

    @cached_property
    def system_event_types(self) -> SystemEventTypes:
        settings = self.settings
        closed = settings.auth != "off"

        def owner_of(owner: str, members: tuple[tuple[str, str], ...]) -> SystemEventTypeOwner:
            """The owner with these members; without members, the administrators, or all subjects if authentication is
            off.
            """
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
        """Create a missing event type. Only this method loads what creation needs, because it happens once for a
        deployment.
        """
        self.registration.creation.create_system_event_type(draft)

    # Publishing

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
            hash_orders=dict(self.settings.hash_orders),
            metrics=self.metrics,
            tracer=self.tracer,
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

    # Streams

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

    # Subscriptions

    @cached_property
    def coordination(self) -> Coordination:
        return open_coordination(self.settings.coordination or self.settings.registry)

    @cached_property
    def subscription_services(self) -> SubscriptionServices:
        from nakadi.app.subscriptions import make_subscription_services

        return make_subscription_services(self, self.coordination)

    @cached_property
    def subscriptions_of_event_types(self) -> SubscriptionsOfEventTypes:
        from nakadi.app.subscriptions import make_subscriptions_of_event_types

        return make_subscriptions_of_event_types(self, self.subscription_services)

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
            reports=self.subscription_services.freshness_reports,
            metrics=self.metrics,
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
            get_publisher=lambda: self.publisher,
            wrap_sender=self._wrap_sender_with_spans,
        )

    def _wrap_sender_with_spans(self, sender: Sender) -> Sender:
        wrapped = self.wrap_sender(sender)
        if self.tracer is None:
            return wrapped
        from nakadi.app.tracing import TracedSender

        return TracedSender(wrapped, self.tracer)

    @cached_property
    def subscription_requests(self) -> SubscriptionRequests:
        from nakadi.app.subscriptions import make_subscription_requests

        return make_subscription_requests(
            self,
            self.subscription_services,
            self.coordination,
            self.delivery_services.sinks,
        )

    # Rehearsals of schemas

    @cached_property
    def queries(self) -> QueryProcesses:
        from nakadi.app.queries import make_query_processes

        at_once = self.settings.queries and max(1, self.settings.queries // self.settings.workers)
        return make_query_processes(self.settings, self.own_url, at_once=at_once)

    @cached_property
    def rehearsals(self) -> Rehearsals:
        from nakadi.rehearsals.rehearsals import Rehearsals
        from nakadi.streaming.access import ReadAccess

        return Rehearsals(
            event_types=self.event_types,
            permissions=self.permissions,
            features=self.features,
            access=ReadAccess(self.event_types, self.permissions, self.features),
            logs=self.logs,
            registry=self.registry,
            clock=self.clock,
            long_work_queue=self.with_turn_metrics("rehearsals", LongWorkQueue()),
            metrics=self.metrics,
        )

    # What accompanies changes

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

    # Housekeeping

    @cached_property
    def table_lag_monitor(self) -> TableLagMonitor | None:
        from nakadi.app.housekeeping import make_table_lag_monitor

        return make_table_lag_monitor(self)

    def find_table_objective(self, event_type: EventType) -> TableObjectiveStatus | None:
        """How well a table meets its objective. The monitor opens the log index, which other requests do not need."""
        if TABLE_OBJECTIVE_ANNOTATION not in event_type.annotations or self.table_lag_monitor is None:
            return None
        return self.table_lag_monitor.objective_status(event_type)

    @cached_property
    def lost_events_recovery(self) -> LostEventsRecovery:
        from nakadi.app.housekeeping import make_lost_events_recovery

        return make_lost_events_recovery(self, self._report_lost_events)

    def _report_lost_events(self, before: EventType, after: EventType) -> None:
        """Report lost events to the audit log. Only this method loads the audit, because losses are very rare."""
        from nakadi.app.audit import timelines_view

        self.audit.publish_own_change("timeline", before.name, timelines_view(before), timelines_view(after))

    @cached_property
    def housekeeping(self) -> Housekeeping:
        from nakadi.app.housekeeping import make_housekeeping

        return make_housekeeping(
            self,
            timelines=self.timelines,
            system_event_types=self.system_event_types,
            lost_events_recovery=self.lost_events_recovery,
            table_lag_monitor=self.table_lag_monitor,
            subscription_services=self.subscription_services,
        )
