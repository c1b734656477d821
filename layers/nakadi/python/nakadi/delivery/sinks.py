"""The sinks of subscriptions: registers, changes and removes them, and reports on their deliveries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import orjson
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.converting import Converter
from nakadi.delivery.addresses import AddressRules
from nakadi.delivery.checks import check_sink
from nakadi.delivery.copies import copies_from_sinks, reachable_event_types
from nakadi.delivery.signing import generate_secret
from nakadi.delivery.targets import TargetRules, canonical_target
from nakadi.event_types.drafts import now_in_milliseconds
from nakadi.event_types.repository import EventTypes
from nakadi.model.authorization import Operation, Subject
from nakadi.model.event_type import SchemaType
from nakadi.model.outcomes import Invalid, NotFound, TryLater, Violation, Violations
from nakadi.model.sink import (
    GENERATED_SECRET,
    DeliveryReport,
    EndedAttempt,
    SigningSecret,
    Sink,
    SinkDraft,
    SinkPause,
    SinkSecrets,
    SinkType,
)
from nakadi.model.subscription import Subscription
from nakadi.ports.clock import Clock
from nakadi.ports.registry import (
    ABSENT_REVISION,
    ChangedMeanwhile,
    CheckRevision,
    Document,
    DocumentChange,
    PutDocument,
    Registry,
    RemoveDocument,
)
from nakadi.ports.secret_box import SecretBox
from nakadi.subscriptions.api.repository import DELIVERY_REPORTS_KIND, SINKS_KIND, Subscriptions
from nakadi.subscriptions.api.repository import SUBSCRIPTIONS_KIND as SUBSCRIPTIONS
from nakadi.subscriptions.api.resource import SUBSCRIPTION_BUSY_MESSAGE, SUBSCRIPTION_WRITE_ATTEMPTS

COPIES_KIND, ALL_COPIES = "sink-copies", "all"
"""The kind and key of a document that every registration of a copying sink rewrites, because two simultaneous
registrations could form a cycle.
"""

SINKS_PER_QUERY = 1000

ROTATION_OVERLAP = timedelta(hours=24)
"""How long the broker still signs with a replaced secret, beside the new one."""

PAUSED_BY_CLIENT = "it was paused"

UNSIGNED_MESSAGE = "Deliveries to a sink of this type are not signed"
NOT_AVAILABLE_MESSAGE = "This broker does not deliver to sinks"

_sinks = Converter(Sink)
_secrets = Converter(SinkSecrets)
_reports = Converter(DeliveryReport)

ChangeSink = Callable[[Sink], Sink]


class SinkRepository(Struct, frozen=True):
    registry: Registry

    def find(self, subscription_id: str) -> Sink | None:
        document = self.registry.get(SINKS_KIND, subscription_id)
        return None if document is None else _sink_from_document(document)

    def get(self, subscription_id: str) -> Sink:
        sink = self.find(subscription_id)
        if sink is None:
            raise NotFound(f'Subscription with id "{subscription_id}" has no sink')
        return sink

    def all(self) -> Iterator[Sink]:
        after = ""
        while page := self.registry.list(SINKS_KIND, after=after, limit=SINKS_PER_QUERY):
            yield from map(_sink_from_document, page)
            if len(page) < SINKS_PER_QUERY:
                return
            after = page[-1].key

    def write(self, sink: Sink, subscription: Subscription, *conditions: DocumentChange) -> None:
        """Store a sink in place of the revision that was read, if the subscription still exists. Raises
        `ChangedMeanwhile`.
        """
        self.registry.write(
            PutDocument(SINKS_KIND, sink.subscription_id, _body_of_sink(sink), expected_revision=sink.revision),
            CheckRevision(SUBSCRIPTIONS, subscription.id, expected_revision=subscription.revision),
            *conditions,
        )

    def no_new_copy_condition(self) -> DocumentChange:
        """The change that makes a write fail if another copying sink was registered meanwhile."""
        document = self.registry.get(COPIES_KIND, ALL_COPIES)
        revision = ABSENT_REVISION if document is None else document.revision
        return PutDocument(COPIES_KIND, ALL_COPIES, {}, expected_revision=revision)

    def write_pause(self, sink: Sink, pause: SinkPause) -> None:
        """Pause a sink. Raises `ChangedMeanwhile` if the sink has changed since it was read."""
        body = _body_of_sink(replace(sink, pause=pause))
        self.registry.write(PutDocument(SINKS_KIND, sink.subscription_id, body, expected_revision=sink.revision))

    def remove(self, subscription_id: str) -> None:
        """Remove a sink and its reports. A repeated call changes nothing."""
        self.registry.write(
            RemoveDocument(SINKS_KIND, subscription_id), RemoveDocument(DELIVERY_REPORTS_KIND, subscription_id)
        )

    def find_report(self, subscription_id: str) -> DeliveryReport | None:
        document = self.registry.get(DELIVERY_REPORTS_KIND, subscription_id)
        return None if document is None else _reports.from_builtins(document.body)

    def write_reports(self, reports: Sequence[tuple[str, DeliveryReport]]) -> None:
        """Store reports by their subscriptions, 99 at most. A report for a sink that was removed meanwhile stays until
        its subscription is removed; until then, it is not read.
        """
        self.registry.write(
            *(PutDocument(DELIVERY_REPORTS_KIND, name, dict(to_builtins(report))) for name, report in reports)
        )


def _body_of_sink(sink: Sink) -> dict[str, Any]:
    body = to_builtins(sink)
    # The key and the revision of a document are not in its body.
    del body["subscription_id"], body["revision"]
    return dict(body)


def _sink_from_document(document: Document) -> Sink:
    return _sinks.from_builtins({**document.body, "subscription_id": document.key, "revision": document.revision})


class SinkSafe(Struct, frozen=True):
    """Encrypts secrets, each for its own subscription."""

    box: SecretBox

    def seal(self, subscription_id: str, secrets: SinkSecrets) -> str:
        return self.box.seal(orjson.dumps(to_builtins(secrets)), _context(subscription_id))

    def open(self, sink: Sink) -> SinkSecrets:
        """Raises `Unavailable`."""
        return _secrets.from_builtins(orjson.loads(self.box.open(sink.sealed, _context(sink.subscription_id))))


def _context(subscription_id: str) -> str:
    return f"the sink of subscription {subscription_id}"


class StoredSink(Struct, frozen=True):
    """A sink that was stored; `new_secret` is shown only this once, if the broker generated it."""

    sink: Sink
    is_new: bool
    new_secret: str | None = None


class Sinks(Struct, frozen=True, kw_only=True):
    """`safe` is None if the broker has no key for secrets; then it has no sinks."""

    repository: SinkRepository
    subscriptions: Subscriptions
    event_types: EventTypes
    permissions: Permissions
    features: Features
    safe: SinkSafe | None
    clock: Clock
    schemes: Collection[str]
    address_rules: AddressRules
    target_rules: TargetRules

    def failure_now(self, subscription_id: str) -> EndedAttempt | None:
        """The last failure of a failing sink; None if the sink delivers, is paused, or does not exist."""
        if self.safe is None:
            return None
        report = self.repository.find_report(subscription_id)
        if report is None or report.failure_now is None:
            return None
        # A report stays when its sink is removed.
        sink = self.repository.find(subscription_id)
        return report.failure_now if sink is not None and sink.pause is None else None

    def check(self, draft: SinkDraft) -> None:
        """Raise `Invalid` if the sink breaks a rule."""
        self._require_safe()
        check_sink(draft, self.schemes, self.address_rules, self.target_rules)

    def check_for_new_subscription(self, draft: SinkDraft, event_types: Iterable[str], subject: Subject) -> None:
        """Raise if a new subscription to these event types could not have this sink, before the subscription is
        created.
        """
        try:
            self.check(draft)
        except Violations as error:
            within = (Violation(f"sink.{each.path}", each.message) for each in error.violations)
            raise Violations(tuple(within)) from error
        names = tuple(event_types)
        self._require_readable(names, subject)
        self._require_writable_target(draft, names, subject)
        self._require_no_circle(draft, names)

    def put_if_missing(self, subscription_id: str, draft: SinkDraft, subject: Subject) -> StoredSink:
        """Return the existing sink; if there is none, register this one."""
        found = self.repository.find(subscription_id)
        return self.put(subscription_id, draft, subject) if found is None else StoredSink(found, is_new=False)

    def get(self, subscription_id: str, subject: Subject) -> tuple[Sink, DeliveryReport | None]:
        self._permitted_subscription(subscription_id, subject, Operation.VIEW)
        return self.repository.get(subscription_id), self.repository.find_report(subscription_id)

    def put(self, subscription_id: str, draft: SinkDraft, subject: Subject) -> StoredSink:
        """Register or replace a sink; this ends a pause."""
        self.check(draft)
        self.features.require_writes_allowed()
        safe = self._require_safe()
        for _ in range(SUBSCRIPTION_WRITE_ATTEMPTS):
            subscription = self._permitted_subscription(
                subscription_id, subject, Operation.VIEW, Operation.READ, Operation.ADMIN
            )
            self._require_readable(subscription.event_types, subject)
            self._require_writable_target(draft, subscription.event_types, subject)
            conditions = self._require_no_circle(draft, subscription.event_types, subscription_id)
            old = self.repository.find(subscription_id)
            secrets, generated = self._secrets_of_draft(draft, None if old is None else safe.open(old))
            new = self._sink_of_draft(draft, subscription_id, safe.seal(subscription_id, secrets), subject, old)
            try:
                self.repository.write(new, subscription, *conditions)
            except ChangedMeanwhile:
                continue
            return StoredSink(new, old is None, generated)
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)

    def remove(self, subscription_id: str, subject: Subject) -> None:
        self.features.require_writes_allowed()
        self._permitted_subscription(subscription_id, subject, Operation.VIEW, Operation.ADMIN)
        self.repository.remove(subscription_id)

    def pause(self, subscription_id: str, subject: Subject) -> None:
        """Deliver nothing until the sink is resumed or replaced. An existing pause stays as it is."""
        pause = SinkPause(PAUSED_BY_CLIENT, now_in_milliseconds(self.clock))
        self._change(subscription_id, subject, lambda sink: sink if sink.pause else replace(sink, pause=pause))

    def resume(self, subscription_id: str, subject: Subject) -> None:
        """End a pause, and retry waiting batches at once."""
        now = now_in_milliseconds(self.clock)
        self._change(subscription_id, subject, lambda sink: replace(sink, pause=None, configured_at=now))

    def restart_stream(self, subscription_id: str, subject: Subject) -> None:
        """Make the sink, if there is one, read a new stream, which uses the present state of the subscription."""
        if self.repository.find(subscription_id) is not None:
            now = now_in_milliseconds(self.clock)
            self._change(
                subscription_id,
                subject,
                lambda sink: replace(sink, configured_at=max(now, sink.configured_at + timedelta(milliseconds=1))),
            )

    def rotate_secret(self, subscription_id: str, subject: Subject) -> StoredSink:
        """Generate a new secret, and sign with it; until the previous secret expires, sign with that too."""
        safe, now = self._require_safe(), now_in_milliseconds(self.clock)
        generated = generate_secret()

        def rotate_secret(sink: Sink) -> Sink:
            secrets = safe.open(sink)
            if not secrets.signing:
                raise Invalid(UNSIGNED_MESSAGE)
            newest = secrets.signing[0]
            kept = SigningSecret(newest.value, now + ROTATION_OVERLAP)
            signing = (SigningSecret(generated), kept)
            sealed = safe.seal(subscription_id, SinkSecrets(signing, secrets.headers))
            return replace(sink, sealed=sealed, configured_at=now)

        return StoredSink(self._change(subscription_id, subject, rotate_secret), False, generated)

    def require_changeable(self, subscription_id: str, subject: Subject) -> Sink:
        """The sink, if the subject may change it. Raises otherwise."""
        self._permitted_subscription(subscription_id, subject, Operation.VIEW, Operation.ADMIN)
        return self.repository.get(subscription_id)

    # Inside

    def _change(self, subscription_id: str, subject: Subject, change: ChangeSink) -> Sink:
        self.features.require_writes_allowed()
        for _ in range(SUBSCRIPTION_WRITE_ATTEMPTS):
            subscription = self._permitted_subscription(subscription_id, subject, Operation.VIEW, Operation.ADMIN)
            old = self.repository.get(subscription_id)
            new = change(old)
            try:
                if new != old:
                    self.repository.write(new, subscription)
            except ChangedMeanwhile:
                continue
            return new
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)

    def _permitted_subscription(self, subscription_id: str, subject: Subject, *operations: Operation) -> Subscription:
        subscription = self.subscriptions.get(subscription_id)
        self.permissions.require_all_operations(operations, subscription.resource, subject)
        return subscription

    def _require_readable(self, event_types: Iterable[str], subject: Subject) -> None:
        names = tuple(event_types)
        self.permissions.require_consumer(subject, names)
        for found in filter(None, map(self.event_types.find, names)):
            self.permissions.require(Operation.READ, found.resource, subject)

    def _require_writable_target(self, draft: SinkDraft, event_types: Collection[str], subject: Subject) -> None:
        """Raise unless the target event type exists, is none of the subscription's, and accepts events from the
        subject.
        """
        if draft.type != SinkType.EVENT_TYPE:
            return
        name = draft.target or ""
        if name in event_types:
            raise Violations((Violation("name", "must not be an event type of the subscription"),))
        found = self.event_types.find(name)
        if found is None:
            raise Violations((Violation("name", "must be an event type"),))
        if all(each.type is SchemaType.AVRO for each in self.event_types.schemas(found)):
            raise Violations((Violation("name", "must be an event type with a JSON schema"),))
        self.permissions.require_producer(subject, name)
        self.permissions.require(Operation.WRITE, found.resource, subject)

    def _require_no_circle(
        self, draft: SinkDraft, event_types: Collection[str], subscription_id: str | None = None
    ) -> Sequence[DocumentChange]:
        """Raise if events would come back to an event type of the subscription. Return a condition for the write, which
        makes it fail if that may have changed.

        The copies that the subscription's present sink makes are ignored, because the new sink replaces it.
        """
        if draft.type != SinkType.EVENT_TYPE:
            return ()
        condition = self.repository.no_new_copy_condition()
        copying = (each for each in self.repository.all() if each.type is SinkType.EVENT_TYPE)
        others = [each for each in copying if each.subscription_id != subscription_id]
        found = [(self.subscriptions.find(each.subscription_id), each.target) for each in others]
        copies = copies_from_sinks((subscription.event_types, to) for subscription, to in found if subscription)
        back = set(reachable_event_types(copies, draft.target or "")).intersection(event_types)
        if back:
            raise Violations((Violation("name", f"must not be copied back to {', '.join(sorted(back))}"),))
        return (condition,)

    def _require_safe(self) -> SinkSafe:
        if self.safe is None:
            raise Invalid(NOT_AVAILABLE_MESSAGE)
        return self.safe

    def _secrets_of_draft(self, draft: SinkDraft, old: SinkSecrets | None) -> tuple[SinkSecrets, str | None]:
        """The secrets to seal, and the generated secret, if there is one."""
        if draft.type != SinkType.HTTP:
            return SinkSecrets((), {}), None
        headers = {name: value or "" for name, value in draft.headers.items()}
        if draft.secret is None and old is not None and old.signing:
            return SinkSecrets(old.signing, headers), None
        generated = generate_secret() if draft.secret in (None, GENERATED_SECRET) else None
        return SinkSecrets((SigningSecret(generated or draft.secret or ""),), headers), generated

    def _sink_of_draft(
        self, draft: SinkDraft, subscription_id: str, sealed: str, subject: Subject, old: Sink | None
    ) -> Sink:
        now = now_in_milliseconds(self.clock)
        return Sink(
            subscription_id=subscription_id,
            type=SinkType(draft.type or ""),
            target=canonical_target(draft.type, draft.target or ""),
            header_names=tuple(draft.headers),
            sealed=sealed,
            format=draft.format,
            batch_limit=draft.batch_limit,
            timeout_seconds=draft.timeout_seconds,
            max_in_flight=draft.max_in_flight,
            parallel=draft.parallel,
            filter=draft.filter,
            subject=subject,
            created_at=now if old is None else old.created_at,
            configured_at=now,
            revision=ABSENT_REVISION if old is None else old.revision,
        )
