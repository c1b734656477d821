"""Lists of subscriptions, page by page, the newest first."""

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
DEFAULT_PAGE_SIZE = 20


class PageDirection(StrEnum):
    """The side of an id on which a page lies, as the first letter of a page's token."""

    BEHIND = "F"
    FROM = "W"
    BEFORE = "B"
    UP_TO = "I"


class SubscriptionFilters(Struct, frozen=True, kw_only=True):
    """Filters that select the subscriptions that match all of them."""

    owning_application: str | None = None
    event_types: tuple[str, ...] = ()
    reader: Attribute | None = None

    def matches(self, subscription: Subscription) -> bool:
        return (
            self.owning_application in (None, subscription.owning_application)
            and set(self.event_types) <= set(subscription.event_types)
            and (self.reader is None or _names_reader(subscription, self.reader))
        )


class SubscriptionPage(Struct, frozen=True, kw_only=True):
    """`previous_page` and `next_page` say where the neighbouring pages begin, as offsets or tokens; None if there is no
    such page.
    """

    items: Sequence[Subscription]
    previous_page: str | int | None = None
    next_page: str | int | None = None


class SubscriptionListing(Struct, frozen=True):
    subscription_repository: Subscriptions

    def page(self, filters: SubscriptionFilters, offset: int, limit: int) -> SubscriptionPage:
        """A page of this size, beginning at this place; another page may follow a full one."""
        items = list(islice(self._matching_newest_first(filters), offset, offset + limit))
        return SubscriptionPage(
            items=items,
            previous_page=max(0, offset - limit) if offset > 0 else None,
            next_page=offset + len(items) if len(items) >= limit else None,
        )

    def page_of_token(self, filters: SubscriptionFilters, token: str, limit: int) -> SubscriptionPage:
        """The page that a token names."""
        if token == FIRST_PAGE:
            return self._first_page(filters, limit)
        direction, subscription_id = _parse_page_token(token)
        if direction in (PageDirection.BEHIND, PageDirection.FROM):
            return self._page_forward(filters, direction, subscription_id, limit)
        return self._page_backward(filters, direction, subscription_id, limit)

    def _first_page(self, filters: SubscriptionFilters, limit: int) -> SubscriptionPage:
        items = list(islice(self._matching_newest_first(filters), limit + 1))
        return SubscriptionPage(
            items=items[:limit],
            next_page=_page_token(PageDirection.BEHIND, items[limit - 1]) if items[limit:] else None,
        )

    def _page_forward(
        self, filters: SubscriptionFilters, direction: PageDirection, subscription_id: str, limit: int
    ) -> SubscriptionPage:
        itself = self._subscription_if_matching(filters, subscription_id) if direction is PageDirection.FROM else ()
        items = list(islice(chain(itself, self._matching_newest_first(filters, subscription_id)), limit + 1))
        if not items:
            # Going back from an empty page leads to the last page before it.
            back = PageDirection.UP_TO if direction is PageDirection.BEHIND else PageDirection.BEFORE
            return SubscriptionPage(items=(), previous_page=f"{back}{subscription_id}")
        return SubscriptionPage(
            items=items[:limit],
            previous_page=_page_token(PageDirection.BEFORE, items[0]),
            next_page=_page_token(PageDirection.BEHIND, items[limit - 1]) if items[limit:] else None,
        )

    def _page_backward(
        self, filters: SubscriptionFilters, direction: PageDirection, subscription_id: str, limit: int
    ) -> SubscriptionPage:
        end = subscription_id + ("\0" if direction is PageDirection.UP_TO else "")
        before = takewhile(lambda each: each.id < end, self._matching_newest_first(filters))
        items = deque(before, maxlen=limit + 1)
        more = len(items) > limit
        if more:
            items.popleft()
        if not items:
            forth = PageDirection.BEHIND if direction is PageDirection.UP_TO else PageDirection.FROM
            return SubscriptionPage(items=(), next_page=f"{forth}{subscription_id}")
        return SubscriptionPage(
            items=list(items),
            previous_page=_page_token(PageDirection.BEFORE, items[0]) if more else None,
            next_page=_page_token(PageDirection.BEHIND, items[-1]),
        )

    def _subscription_if_matching(self, filters: SubscriptionFilters, subscription_id: str) -> Sequence[Subscription]:
        found = self.subscription_repository.find(subscription_id)
        return (found,) if found is not None and filters.matches(found) else ()

    def _matching_newest_first(self, filters: SubscriptionFilters, after: str = "") -> Iterator[Subscription]:
        event_type = filters.event_types[0] if filters.event_types else None
        found = self.subscription_repository.newest_first(after=after, event_type=event_type)
        return (each for each in found if filters.matches(each))


def _names_reader(subscription: Subscription, reader: Attribute) -> bool:
    """Names are compared literally: a wildcard reader does not match every name."""
    return subscription.authorization is not None and reader in subscription.authorization.readers


def _parse_page_token(token: str) -> tuple[PageDirection, str]:
    if token[:1] not in set(PageDirection):
        raise Malformed(f"'{token}' is not a token of this list")
    return PageDirection(token[0]), token[1:]


def _page_token(direction: PageDirection, subscription: Subscription) -> str:
    return f"{direction}{subscription.id}"
