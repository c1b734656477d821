"""The table, with calls that are made again until they are known to have done what they should."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from pynamodb.exceptions import DoesNotExist
from pynamodb.expressions.condition import Condition
from pynamodb.transactions import TransactWrite

from nakadi.coordination.dynamodb_items import CoordinationItem
from nakadi.dynamodb.calls import Attempts, transaction_of
from nakadi.dynamodb.opening import Address, connected
from nakadi.dynamodb.tables import COORDINATION
from nakadi.model.outcomes import Unavailable


class CoordinationTable:
    """Reads see every write that returned before they began."""

    def __init__(self, address: Address, attempts: Attempts) -> None:
        self.items = address.bound(CoordinationItem, COORDINATION)
        self.attempts = attempts
        self._closed = False
        self._connection = connected(self.items)
        self._client = self._connection.client

    def see_that_it_is_open(self) -> None:
        if self._closed:
            raise Unavailable("The coordination is closed.")

    def found(self, place: str, item: str) -> CoordinationItem | None:
        self.see_that_it_is_open()

        def attempt(_: bool) -> CoordinationItem | None:
            try:
                return self.items.get(place, item, consistent_read=True)
            except DoesNotExist:
                return None

        return self.attempts.at(attempt)

    def listed(
        self, place: str, condition: Condition | None = None, *, limit: int | None = None
    ) -> Iterator[CoordinationItem]:
        """One by one, trying again for a page that did not come."""
        self.see_that_it_is_open()
        results = self.items.query(place, range_key_condition=condition, consistent_read=True, limit=limit)
        while (item := self.attempts.at(lambda _: next(results, None))) is not None:
            yield item

    def removed(self, place: str, items: Iterable[str]) -> None:
        """Remove items, also those that are not there."""
        self.see_that_it_is_open()
        rest = iter(items)
        while some := list(islice(rest, 100)):

            def attempt(_: bool, some: list[str] = some) -> None:
                with self.items.batch_write() as batch:
                    for item in some:
                        batch.delete(self.items(place, item))

            self.attempts.at(attempt)

    def transacted(self, add: Callable[[TransactWrite], None]) -> bool:
        """Make all changes that are added, or none because a condition does not hold."""
        self.see_that_it_is_open()
        return self.attempts.at(transaction_of(add, self._connection))

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def refuse(self) -> None:
        """From now on nothing is asked any more."""
        self._closed = True
