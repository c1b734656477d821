"""Stalling: which subscriptions have events waiting and streams that do not commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from nakadi.chores import attempted
from nakadi.model.coordination import Assignment
from nakadi.model.subscription import Subscription
from nakadi.ports import Coordination
from nakadi.subscriptions.repository import Subscriptions
from nakadi.subscriptions.stats import Stats

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StallWatch:
    """Looks at all subscriptions now and then. `stalled` are those that were so the last time, by id.

    `fulfil_wish` does what a reset wishes whose process died, and which no stream has found since.
    """

    subscriptions: Subscriptions
    coordination: Coordination
    stats: Stats
    fulfil_wish: Callable[[str], Assignment]
    stalled: list[str] = field(default_factory=list)

    def look(self) -> None:
        """It costs a read for a subscription that nobody streams, and little more for one that commits."""
        found: list[Subscription] = []
        for each in self.subscriptions.newest_first():
            attempted("search for stalled streams", f"the subscription {each.id}", partial(self._look_at, each, found))
        self.stalled[:] = [each.id for each in found]
        for each in found:
            _tell(each)

    def _look_at(self, subscription: Subscription, found: list[Subscription]) -> None:
        assignment = self.coordination.assignment(subscription.id)
        if assignment.reset is not None:
            assignment = self.fulfil_wish(subscription.id)
        if self.stats.is_stalled(subscription, assignment):
            found.append(subscription)


def _tell(subscription: Subscription) -> None:
    log.warning(
        "The subscription %s of %s is stalled: events wait, and its streams commit nothing",
        subscription.id,
        subscription.owning_application,
    )
