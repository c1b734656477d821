"""What becomes of subscriptions when an event type is deleted, or gets more partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nakadi.administration.features import Features
from nakadi.model.administration import Feature
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Conflict
from nakadi.model.subscription import Subscription
from nakadi.ports import Change
from nakadi.subscriptions.attachment import Attachment
from nakadi.subscriptions.initialisation import Initialisation
from nakadi.subscriptions.leftovers import Leftovers
from nakadi.subscriptions.repository import Subscriptions, removal
from nakadi.subscriptions.resets import Resets

# What an event type's own removal needs beside.
ROOM = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedEventTypes:
    """What the catalog asks before it deletes an event type, and tells when one has got partitions."""

    subscriptions: Subscriptions
    features: Features
    initialisation: Initialisation
    resets: Resets
    leftovers: Leftovers
    deletable_owner: str
    deletable_group: str
    attachment: Attachment

    def released(self, event_type: EventType) -> tuple[Change, ...]:
        """What the removal of an event type has to do and to insist on besides; raises `Conflict` if subscriptions
        stand against it."""
        if event_type.name == self.attachment.name and self.attachment.is_attached():
            raise _subscribed(event_type)
        mark = self.subscriptions.mark(event_type)
        found = self.subscriptions.of_event_type(event_type.name)
        if not self._may_go_too(found) or self.subscriptions.is_being_subscribed(event_type.name):
            raise _subscribed(event_type)
        changes = tuple(change for each in found for change in removal(each))
        if len(changes) <= ROOM:
            return (mark, *changes)
        for each in found:
            self.subscriptions.remove(each)
        return (mark,)

    def clear_up(self) -> None:
        """An event type is deleted, and with it perhaps subscriptions: end what is left of them."""
        self.leftovers.try_to_clear_all()

    def growing(self, event_type: EventType) -> None:
        """Subscriptions that were never streamed get their first offsets now, while what is new can be told apart."""
        for each in self.subscriptions.of_event_type(event_type.name):
            self.initialisation.initialised(each)

    def grown(self, event_type: EventType) -> None:
        """Have the subscriptions consume all partitions; the streams of those that got some end and come back."""
        found = self.subscriptions.of_event_type(event_type.name)
        extended = [each.id for each in found if self.initialisation.extended(each, event_type)[1]]
        self.resets.close_streams(extended)
        # Somebody who asked before may have been answered before streams had ended.
        self.resets.wait_for_end([each.id for each in found])

    def _may_go_too(self, subscriptions: Sequence[Subscription]) -> bool:
        if not subscriptions or self.features.is_on(Feature.DELETE_EVENT_TYPE_WITH_SUBSCRIPTIONS):
            return True
        return all(
            (each.owning_application, each.consumer_group) == (self.deletable_owner, self.deletable_group)
            for each in subscriptions
        )


def _subscribed(event_type: EventType) -> Conflict:
    return Conflict(f"Can't remove event type {event_type.name}, as it has subscriptions")
