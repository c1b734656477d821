"""Objectives of subscriptions: sets them, and measures how well they are met."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.converting import Converter
from nakadi.event_types.drafts import now_in_milliseconds
from nakadi.model.authorization import Operation, Subject
from nakadi.model.objective import (
    MinuteCounts,
    Objective,
    SlowestPartition,
    Window,
    merge_counts,
    pressure_of,
    windows_of,
)
from nakadi.model.outcomes import NotFound, TryLater, Violations
from nakadi.model.subscription import ObjectiveDraft, Subscription
from nakadi.ports.clock import Clock
from nakadi.ports.registry import ABSENT_REVISION, ChangedMeanwhile, CheckRevision, PutDocument, Registry
from nakadi.subscriptions.api.fields import objective_from_draft, objective_violations
from nakadi.subscriptions.api.repository import FRESHNESS_REPORTS_KIND, SUBSCRIPTIONS_KIND, Subscriptions
from nakadi.subscriptions.api.resource import SUBSCRIPTION_BUSY_MESSAGE, SUBSCRIPTION_WRITE_ATTEMPTS
from nakadi.subscriptions.api.stats import SubscriptionStats

NO_OBJECTIVE_MESSAGE = "The subscription has no objective"


class FreshnessReport(Struct, frozen=True):
    """The counts of the processes that stream a subscription, for the objective that was set at `set_at`."""

    set_at: datetime
    counts: tuple[MinuteCounts, ...] = ()


_reports = Converter(FreshnessReport)


class FreshnessReports(Struct, frozen=True):
    registry: Registry
    clock: Clock

    def find(self, subscription_id: str, objective: Objective) -> FreshnessReport:
        """The counts of this objective; counts of an earlier objective are ignored."""
        found, _ = self._read(subscription_id)
        return found if found is not None and found.set_at == objective.set_at else FreshnessReport(objective.set_at)

    def windows(self, subscription_id: str, objective: Objective) -> Sequence[Window]:
        """The windows of this objective until now."""
        return windows_of(objective.percent, self.find(subscription_id, objective).counts, self.clock.now())

    def add(self, subscription_id: str, objective: Objective, counts: Sequence[MinuteCounts]) -> None:
        """Add counts. Counts of a replaced objective, or of a deleted subscription, are dropped."""
        for _ in range(SUBSCRIPTION_WRITE_ATTEMPTS):
            subscription = self.registry.get(SUBSCRIPTIONS_KIND, subscription_id)
            if subscription is None:
                return
            found, revision = self._read(subscription_id)
            if found is not None and found.set_at > objective.set_at:
                return
            stored = found.counts if found is not None and found.set_at == objective.set_at else ()
            merged = merge_counts((*stored, *counts), self.clock.now())
            report = to_builtins(FreshnessReport(objective.set_at, merged))
            try:
                self.registry.write(
                    PutDocument(FRESHNESS_REPORTS_KIND, subscription_id, report, expected_revision=revision),
                    # The subscription may be deleted at this moment, and its report with it: nothing would remove a
                    # report that is written afterwards.
                    CheckRevision(SUBSCRIPTIONS_KIND, subscription_id, expected_revision=subscription.revision),
                )
            except ChangedMeanwhile:
                continue
            return
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)

    def _read(self, subscription_id: str) -> tuple[FreshnessReport | None, int]:
        document = self.registry.get(FRESHNESS_REPORTS_KIND, subscription_id)
        if document is None:
            return None, ABSENT_REVISION
        return _reports.from_builtins(document.body), document.revision


class ObjectiveStatus(Struct, frozen=True):
    """How well an objective is met. `pressure` is the age of the longest waiting event, in relation to what the
    objective allows: above 1, the subscription is late. `slowest` is None if no event waits.
    """

    objective: Objective
    windows: Sequence[Window]
    slowest: SlowestPartition | None = None

    @property
    def pressure(self) -> float:
        return 0.0 if self.slowest is None else pressure_of(self.slowest.lag_seconds, self.objective.within_seconds)


class Objectives(Struct, frozen=True, kw_only=True):
    subscription_repository: Subscriptions
    reports: FreshnessReports
    stats: SubscriptionStats
    permissions: Permissions
    features: Features
    clock: Clock

    def status(self, subscription_id: str, subject: Subject) -> ObjectiveStatus:
        subscription = self.subscription_repository.get(subscription_id)
        self.permissions.require(Operation.VIEW, subscription.resource, subject)
        if subscription.objective is None:
            raise NotFound(NO_OBJECTIVE_MESSAGE)
        slowest = self.stats.slowest_partition(subscription, subscription.objective)
        return replace(self.status_by_counts(subscription.id, subscription.objective), slowest=slowest)

    def status_by_counts(self, subscription_id: str, objective: Objective) -> ObjectiveStatus:
        """The part of the status that needs no read of the log."""
        return ObjectiveStatus(objective, self.reports.windows(subscription_id, objective))

    def put(self, subscription_id: str, draft: ObjectiveDraft, subject: Subject) -> Objective:
        """Set an objective. An equal objective continues unchanged."""
        if violations := tuple(objective_violations(draft)):
            raise Violations(violations)
        wanted = objective_from_draft(draft, now_in_milliseconds(self.clock))
        stored = self._change(subscription_id, subject, wanted)
        assert stored.objective is not None
        return stored.objective

    def remove(self, subscription_id: str, subject: Subject) -> None:
        self._change(subscription_id, subject, None)

    def _change(self, subscription_id: str, subject: Subject, wanted: Objective | None) -> Subscription:
        self.features.require_writes_allowed()
        for _ in range(SUBSCRIPTION_WRITE_ATTEMPTS):
            old = self.subscription_repository.get(subscription_id)
            self.permissions.require_all_operations((Operation.VIEW, Operation.ADMIN), old.resource, subject)
            new = objective_after(old.objective, wanted)
            if new == old.objective:
                return old
            try:
                return self.subscription_repository.replace(old, replace(old, objective=new))
            except ChangedMeanwhile:
                continue
        raise TryLater(SUBSCRIPTION_BUSY_MESSAGE)


def objective_after(old: Objective | None, wanted: Objective | None) -> Objective | None:
    """The objective that follows from a request. An equal objective continues, with its counts."""
    if old is None or wanted is None:
        return wanted
    if replace(wanted, set_at=old.set_at) == old:
        return old
    # Two objectives of a subscription never have the same time, because reports distinguish them by it.
    return replace(wanted, set_at=max(wanted.set_at, old.set_at + timedelta(milliseconds=1)))
