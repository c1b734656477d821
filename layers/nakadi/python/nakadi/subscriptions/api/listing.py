"""Listing subscriptions, page by page.

Ids are in the order of creation, the newest first, so that a page costs what is on it and before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice, takewhile

from nakadi.model.authorization import Attribute
from nakadi.model.outcomes import Malformed
from nakadi.model.subscription import Subscription
from nakadi.subscriptions.api.repository import Subscriptions

NEW = "new"
DEFAULT_LIMIT = 20


class Direction(StrEnum):
    """Which side of an id a page lies on, as the first letter of a token."""

    BEHIND = "F"
    FROM = "W"
    BEFORE = "B"
    UP_TO = "I"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which subscriptions are wanted: those that fulfil all of these."""

    owning_application: str | None = None
    event_types: tuple[str, ...] = ()
    reader: Attribute | None = None

    def match(self, subscription: Subscription) -> bool:
        return (
            self.owning_application in (None, subscription.owning_application)
            and set(self.event_types) <= set(subscription.event_types)
            and (self.reader is None or _names_reader(subscription, self.reader))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`before` and `after` are where the neighbouring pages begin, as offsets or tokens; None if there is none."""

    items: Sequence[Subscription]
    before: str | int | None = None
    after: str | int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    subscriptions: Subscriptions

    def page(self, filters: Filters, offset: int, limit: int) -> Page:
        """So many from this place on; a full page may have another one behind it."""
        items = list(islice(self._matching(filters), offset, offset + limit))
        return Page(
            items=items,
            before=max(0, offset - limit) if offset > 0 else None,
            after=offset + len(items) if len(items) >= limit else None,
        )

    def page_at(self, filters: Filters, token: str, limit: int) -> Page:
        """The page that a token names."""
        if token == NEW:
            return self._first(filters, limit)
        direction, subscription_id = _read(token)
        if direction in (Direction.BEHIND, Direction.FROM):
            return self._forward(filters, direction, subscription_id, limit)
        return self._back(filters, direction, subscription_id, limit)

    def _first(self, filters: Filters, limit: int) -> Page:
        items = list(islice(self._matching(filters), limit + 1))
        return Page(items=items[:limit], after=_token(Direction.BEHIND, items[limit - 1]) if items[limit:] else None)

    def _forward(self, filters: Filters, direction: Direction, subscription_id: str, limit: int) -> Page:
        itself = self._itself(filters, subscription_id) if direction is Direction.FROM else ()
        items = list(islice(chain(itself, self._matching(filters, subscription_id)), limit + 1))
        if not items:
            # Going back from nowhere leads to what was left behind.
            back = Direction.UP_TO if direction is Direction.BEHIND else Direction.BEFORE
            return Page(items=(), before=f"{back}{subscription_id}")
        return Page(
            items=items[:limit],
            before=_token(Direction.BEFORE, items[0]),
            after=_token(Direction.BEHIND, items[limit - 1]) if items[limit:] else None,
        )

    def _back(self, filters: Filters, direction: Direction, subscription_id: str, limit: int) -> Page:
        end = subscription_id + ("\0" if direction is Direction.UP_TO else "")
        before = takewhile(lambda each: each.id < end, self._matching(filters))
        items = deque(before, maxlen=limit + 1)
        more = len(items) > limit
        if more:
            items.popleft()
        if not items:
            forth = Direction.BEHIND if direction is Direction.UP_TO else Direction.FROM
            return Page(items=(), after=f"{forth}{subscription_id}")
        return Page(
            items=list(items),
            before=_token(Direction.BEFORE, items[0]) if more else None,
            after=_token(Direction.BEHIND, items[-1]),
        )

    def _itself(self, filters: Filters, subscription_id: str) -> Sequence[Subscription]:
        found = self.subscriptions.find(subscription_id)
        return (found,) if found is not None and filters.match(found) else ()

    def _matching(self, filters: Filters, after: str = "") -> Iterator[Subscription]:
        event_type = filters.event_types[0] if filters.event_types else None
        found = self.subscriptions.newest_first(after=after, event_type=event_type)
        return (each for each in found if filters.match(each))


def _names_reader(subscription: Subscription, reader: Attribute) -> bool:
    """Literally: a wildcard reader is not everyone's name."""
    return subscription.authorization is not None and reader in subscription.authorization.readers


def _read(token: str) -> tuple[Direction, str]:
    if token[:1] not in set(Direction):
        raise Malformed(f"'{token}' is not a token of this list")
    return Direction(token[0]), token[1:]


def _token(direction: Direction, subscription: Subscription) -> str:
    return f"{direction}{subscription.id}"
