"""Listing subscriptions, page by page.

Ids are in the order of creation, the newest first, so that a page costs what is on it and before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice, takewhile

from msgspec import Struct

from nakadi.model.authorization import Attribute
from nakadi.model.outcomes import Malformed
from nakadi.model.subscription import Subscription
from nakadi.subscriptions.api.repository import Subscriptions

FIRST_PAGE = "new"
DEFAULT_LIMIT = 20


class PageDirection(StrEnum):
    """Which side of an id a page lies on, as the first letter of a token."""

    BEHIND = "F"
    FROM = "W"
    BEFORE = "B"
    UP_TO = "I"


class SubscriptionFilters(Struct, frozen=True, kw_only=True):
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


class SubscriptionPage(Struct, frozen=True, kw_only=True):
    """`before` and `after` are where the neighbouring pages begin, as offsets or tokens; None if there is none."""

    items: Sequence[Subscription]
    before: str | int | None = None
    after: str | int | None = None


class SubscriptionListing(Struct, frozen=True):
    subscriptions: Subscriptions

    def page(self, filters: SubscriptionFilters, offset: int, limit: int) -> SubscriptionPage:
        """So many from this place on; a full page may have another one behind it."""
        items = list(islice(self._matching(filters), offset, offset + limit))
        return SubscriptionPage(
            items=items,
            before=max(0, offset - limit) if offset > 0 else None,
            after=offset + len(items) if len(items) >= limit else None,
        )

    def page_at(self, filters: SubscriptionFilters, token: str, limit: int) -> SubscriptionPage:
        """The page that a token names."""
        if token == FIRST_PAGE:
            return self._first(filters, limit)
        direction, subscription_id = _read(token)
        if direction in (PageDirection.BEHIND, PageDirection.FROM):
            return self._forward(filters, direction, subscription_id, limit)
        return self._back(filters, direction, subscription_id, limit)

    def _first(self, filters: SubscriptionFilters, limit: int) -> SubscriptionPage:
        items = list(islice(self._matching(filters), limit + 1))
        return SubscriptionPage(
            items=items[:limit], after=_token(PageDirection.BEHIND, items[limit - 1]) if items[limit:] else None
        )

    def _forward(
        self, filters: SubscriptionFilters, direction: PageDirection, subscription_id: str, limit: int
    ) -> SubscriptionPage:
        itself = self._itself(filters, subscription_id) if direction is PageDirection.FROM else ()
        items = list(islice(chain(itself, self._matching(filters, subscription_id)), limit + 1))
        if not items:
            # Going back from nowhere leads to what was left behind.
            back = PageDirection.UP_TO if direction is PageDirection.BEHIND else PageDirection.BEFORE
            return SubscriptionPage(items=(), before=f"{back}{subscription_id}")
        return SubscriptionPage(
            items=items[:limit],
            before=_token(PageDirection.BEFORE, items[0]),
            after=_token(PageDirection.BEHIND, items[limit - 1]) if items[limit:] else None,
        )

    def _back(
        self, filters: SubscriptionFilters, direction: PageDirection, subscription_id: str, limit: int
    ) -> SubscriptionPage:
        end = subscription_id + ("\0" if direction is PageDirection.UP_TO else "")
        before = takewhile(lambda each: each.id < end, self._matching(filters))
        items = deque(before, maxlen=limit + 1)
        more = len(items) > limit
        if more:
            items.popleft()
        if not items:
            forth = PageDirection.BEHIND if direction is PageDirection.UP_TO else PageDirection.FROM
            return SubscriptionPage(items=(), after=f"{forth}{subscription_id}")
        return SubscriptionPage(
            items=list(items),
            before=_token(PageDirection.BEFORE, items[0]) if more else None,
            after=_token(PageDirection.BEHIND, items[-1]),
        )

    def _itself(self, filters: SubscriptionFilters, subscription_id: str) -> Sequence[Subscription]:
        found = self.subscriptions.find(subscription_id)
        return (found,) if found is not None and filters.match(found) else ()

    def _matching(self, filters: SubscriptionFilters, after: str = "") -> Iterator[Subscription]:
        event_type = filters.event_types[0] if filters.event_types else None
        found = self.subscriptions.newest_first(after=after, event_type=event_type)
        return (each for each in found if filters.match(each))


def _names_reader(subscription: Subscription, reader: Attribute) -> bool:
    """Literally: a wildcard reader is not everyone's name."""
    return subscription.authorization is not None and reader in subscription.authorization.readers


def _read(token: str) -> tuple[PageDirection, str]:
    if token[:1] not in set(PageDirection):
        raise Malformed(f"'{token}' is not a token of this list")
    return PageDirection(token[0]), token[1:]


def _token(direction: PageDirection, subscription: Subscription) -> str:
    return f"{direction}{subscription.id}"
