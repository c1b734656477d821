"""Wires the parts that deliver to sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from nakadi.app.core import BrokerCore
from nakadi.app.engines import open_secret_box
from nakadi.delivery.addresses import AddressRules, parse_address_rules
from nakadi.delivery.answers import Answer
from nakadi.delivery.sinks import NOT_AVAILABLE_MESSAGE, SinkRepository, Sinks, SinkSafe
from nakadi.delivery.targets import TargetRules
from nakadi.event_types.drafts import now_in_milliseconds
from nakadi.http.routes.sinks import sink_view
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import BadSetting, Invalid
from nakadi.model.sink import Sink, SinkPause, SinkType
from nakadi.ports.coordination import Coordination
from nakadi.ports.registry import ChangedMeanwhile
from nakadi.subscriptions.api.lease_watch import LeaseWatch
from nakadi.subscriptions.api.repository import Subscriptions

if TYPE_CHECKING:
    from nakadi.delivery.aws_calls import AwsCalls
    from nakadi.delivery.dispatcher import Dispatcher
    from nakadi.delivery.senders import Sender
    from nakadi.http.views import View
    from nakadi.publishing.publisher import Publisher
    from nakadi.publishing.system_events import KpiCollector
    from nakadi.streaming.driver import StreamFigures
    from nakadi.subscriptions.stream.streams import SubscriptionStreams

# Threads that open streams and write reports, for all sinks. Requests to sinks do not run in them.
DELIVERY_THREAD_COUNT = 4
PUBLISHING_THREAD_COUNT = 8
# For stores that charge for writes: a report of a busy sink takes a dozen write units, and a commit takes one.
PAID_REPORT_INTERVAL_SECONDS, PAID_COMMIT_WAIT_SECONDS = 30.0, 0.2
# Threads for the calls to each AWS service, started when needed. A call may occupy its thread for up to a minute.
AWS_THREAD_COUNT = 100


class DeliveryServices(Struct, dict=True, frozen=True, kw_only=True):
    """The parts of deliveries, each created once, at its first use."""

    core: BrokerCore
    subscriptions: Subscriptions
    get_coordination: Callable[[], Coordination]
    get_streams: Callable[[], SubscriptionStreams]
    get_kpi_collector: Callable[[], KpiCollector]
    get_publisher: Callable[[], Publisher]
    wrap_sender: Callable[[Sender], Sender]

    @cached_property
    def safe(self) -> SinkSafe | None:
        """The safe for secrets of sinks. Without a key for secrets it is None, and the broker has no sinks."""
        box = open_secret_box(self.core.settings.registry, self.core.settings.sink_key)
        return None if box is None else SinkSafe(box)

    @cached_property
    def repository(self) -> SinkRepository:
        return SinkRepository(self.core.registry)

    @cached_property
    def address_rules(self) -> AddressRules:
        return parse_address_rules(self.core.settings.sink_networks)

    @cached_property
    def target_rules(self) -> TargetRules:
        return TargetRules(self.core.settings.sink_targets)

    @cached_property
    def sinks(self) -> Sinks:
        core = self.core
        return Sinks(
            repository=self.repository,
            subscriptions=self.subscriptions,
            event_types=core.event_types,
            permissions=core.permissions,
            features=core.features,
            safe=self.safe,
            clock=core.clock,
            schemes=core.settings.sink_schemes,
            address_rules=self.address_rules,
            target_rules=self.target_rules,
        )

    def require_sdk(self) -> None:
        """Raise `BadSetting` if the AWS SDK is missing. Deliveries import the SDK only when they need it, and would
        report its absence as a failure of the events."""
        if self.core.settings.sink_targets and find_spec("botocore") is None:
            raise BadSetting("NAKADI_SINK_TARGETS needs the Python package boto3: pip install 'nakadi-serverless[aws]'")

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(DELIVERY_THREAD_COUNT, thread_name_prefix="nakadi-delivering")

    @cached_property
    def _senders(self) -> dict[SinkType, Sender]:
        return {}

    def _get_sender(self, sink_type: SinkType) -> Sender:
        # Two threads may create a sender of a type at the same time. The first that is stored is used; the other has
        # opened nothing yet, so it need not be closed.
        found = self._senders.get(sink_type)
        return found or self._senders.setdefault(sink_type, self.wrap_sender(SENDERS[sink_type](self)))

    @cached_property
    def dispatcher(self) -> Dispatcher:
        from nakadi.delivery.courier import CourierParts
        from nakadi.delivery.dispatcher import REPORT_INTERVAL_SECONDS, Dispatcher

        core, safe, coordination = self.core, self.safe, self.get_coordination()
        assert safe is not None, NOT_AVAILABLE_MESSAGE
        parts = CourierParts(
            streams=self.get_streams(),
            coordination=coordination,
            clock=core.clock,
            get_sender=self._get_sender,
            threads=self._threads,
            metrics=core.metrics,
            open_secrets=safe.open,
            pause_sink=self._pause_sink,
            reading_subject=self.subject_of,
            new_figures=self._new_figures,
        )
        interval = REPORT_INTERVAL_SECONDS
        if core.has_unknown_neighbours:
            interval, parts = PAID_REPORT_INTERVAL_SECONDS, replace(parts, commit_wait_seconds=PAID_COMMIT_WAIT_SECONDS)
        dispatcher = Dispatcher(self.repository, parts, LeaseWatch(coordination, core.clock).live_holders, interval)
        core.metrics.sinks_served.add_source(lambda: {(): dispatcher.count_sinks()})
        core.metrics.sink_failing_seconds.add_source(
            lambda: {(name,): seconds for name, seconds in dispatcher.failing_seconds().items()}
        )
        core.metrics.sink_bytes_held.add_source(lambda: {(): parts.memory.held})
        return dispatcher

    def try_sink(self, sink: Sink) -> Answer:
        """Send a delivery without events to a sink, and return the sink's answer."""
        if self.safe is None:
            raise Invalid(NOT_AVAILABLE_MESSAGE)
        return self.dispatcher.try_sink(sink)

    def read_sink(self, subscription_id: str) -> View | None:
        """A sink as clients see it, without secrets; None if the subscription has no sink."""
        sink = self.repository.find(subscription_id)
        return None if sink is None else sink_view(sink)

    def get_aws_calls(self) -> AwsCalls:
        """Load the SDK, at the first call of this method."""
        return self._aws_calls

    @cached_property
    def _aws_calls(self) -> AwsCalls:
        from nakadi.delivery.aws_clients import AwsClients

        return AwsClients()

    def close(self) -> None:
        if "_threads" in vars(self):
            self._threads.shutdown(wait=True, cancel_futures=True)
        if "_aws_calls" in vars(self):
            self._aws_calls.close()

    def _pause_sink(self, sink: Sink, reason: str) -> None:
        current = self.repository.find(sink.subscription_id)
        if current is not None and current.configured_at == sink.configured_at and current.pause is None:
            # If somebody changes the sink at this moment, that change takes precedence. The next answer of the sink
            # decides whether it is paused.
            with suppress(ChangedMeanwhile):
                pause = SinkPause(reason, now_in_milliseconds(self.core.clock))
                self.repository.write_pause(current, pause)

    def subject_of(self, sink: Sink) -> Subject:
        """The subject that registered the sink. A subject that was trusted because authentication was off is not
        trusted once authentication is on.
        """
        return replace(sink.subject, trusted=sink.subject.trusted and self.core.settings.auth == "off")

    def _new_figures(self, subject: Subject, subscription_id: str) -> StreamFigures:
        from nakadi.publishing.system_events import StreamKpis

        core = self.core
        return StreamKpis(self.get_kpi_collector(), core.clock, subject, str(uuid4()), subscription_id, core.metrics)


def _open_http_sender(services: DeliveryServices) -> Sender:
    from nakadi.delivery.http_sender import HttpSender

    return HttpSender(services.address_rules, services.core.clock.now)


def _open_event_type_sender(services: DeliveryServices) -> Sender:
    from nakadi.delivery.event_type_sender import EventTypeSender

    threads = ThreadPoolExecutor(PUBLISHING_THREAD_COUNT, thread_name_prefix="nakadi-copying")
    return EventTypeSender(services.get_publisher().publish, threads, services.subject_of)


def _open_lambda_sender(services: DeliveryServices) -> Sender:
    from nakadi.delivery.lambda_sender import LambdaSender

    threads = ThreadPoolExecutor(AWS_THREAD_COUNT, thread_name_prefix="nakadi-invoking")
    return LambdaSender(services.target_rules, services.get_aws_calls, threads)


def _open_entry_sender(service: SinkType, services: DeliveryServices) -> Sender:
    from nakadi.delivery.entry_sender import EntrySender
    from nakadi.delivery.entry_services import ENTRY_SERVICES

    threads = ThreadPoolExecutor(AWS_THREAD_COUNT, thread_name_prefix=f"nakadi-{service}")
    clock = services.core.clock
    return EntrySender(ENTRY_SERVICES[service], services.target_rules, services.get_aws_calls, threads, clock.monotonic)


SENDERS: Mapping[SinkType, Callable[[DeliveryServices], Sender]] = {
    SinkType.HTTP: _open_http_sender,
    SinkType.EVENT_TYPE: _open_event_type_sender,
    SinkType.LAMBDA: _open_lambda_sender,
    SinkType.SQS: partial(_open_entry_sender, SinkType.SQS),
    SinkType.SNS: partial(_open_entry_sender, SinkType.SNS),
    SinkType.EVENTBRIDGE: partial(_open_entry_sender, SinkType.EVENTBRIDGE),
}
"""For each type of sink, the function that makes its sender and loads the client that the sender needs."""
