"""What deleted subscriptions leave behind."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from nakadi.chores import attempted
from nakadi.model.outcomes import Fault
from nakadi.ports import Coordination
from nakadi.subscriptions.repository import Subscriptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What deleted subscriptions leave behind: an assignment and offsets. Running streams end when these go."""

    subscriptions: Subscriptions
    coordination: Coordination

    def clear_all(self) -> None:
        for subscription_id in self.subscriptions.leftovers():
            attempted(
                "removal of leftovers", f"the subscription {subscription_id}", partial(self.clear, subscription_id)
            )

    def clear(self, subscription_id: str) -> None:
        """The note goes last, so that nothing is forgotten."""
        self.coordination.forget(subscription_id)
        self.subscriptions.cleared(subscription_id)

    def try_to_clear_all(self) -> None:
        """What cannot be cleared now is cleared by the next housekeeping."""
        try:
            self.clear_all()
        except Fault:
            log.warning("What deleted subscriptions left is still to be cleared away", exc_info=True)
