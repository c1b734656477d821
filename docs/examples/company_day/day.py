"""Makes the events of a small company's day from a seed, and the correct results of queries over them.

A customer places orders, pays for them, perhaps in two parts, and receives shipments. Some events are late, some are
invalid and rejected, and some are published twice. Orders and shipments have personal data.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

ORDERS, PAYMENTS, SHIPMENTS = "company.order-placed", "company.payment-received", "company.shipment-changed"

CUSTOMER_PATHS = {ORDERS: "customer.id", PAYMENTS: "payer", SHIPMENTS: "data.recipient.id"}
"""The path to an event's customer, by event type."""

COUNTRIES = ("DE", "FR", "PL")
STATES = ("packed", "sent", "delivered")
LATE = timedelta(hours=3)

TEXT, CENTS = {"type": "string"}, {"type": "number", "multipleOf": 0.01}
CUSTOMER = {"type": "object", "required": ["id"], "properties": {"id": TEXT, "email": TEXT}}
SCHEMAS: Mapping[str, Any] = {
    ORDERS: {
        "required": ["order_number", "customer", "total"],
        "properties": {
            "order_number": {"type": "integer"},
            "country": {"type": "string", "enum": [*COUNTRIES]},
            "customer": CUSTOMER,
            "items": {"type": "array", "items": {"properties": {"sku": TEXT, "price": CENTS}}},
            "total": CENTS,
        },
    },
    PAYMENTS: {
        "required": ["order_number", "amount"],
        "properties": {
            "order_number": {"type": "integer"},
            "payer": TEXT,
            "amount": CENTS,
            # Data of the payment provider, whose structure is unknown.
            "details": {"type": "object"},
        },
    },
    SHIPMENTS: {
        "required": ["order_number", "state"],
        "properties": {
            "order_number": {"type": "integer"},
            "state": {"type": "string", "enum": [*STATES]},
            "recipient": CUSTOMER,
        },
    },
}
FEATURES: Mapping[str, Mapping[str, Any]] = {
    ORDERS: {
        "category": "business",
        "partition_key_fields": ["order_number"],
        "annotations": {
            "nakadi.io/expect": "total > 0",
            "nakadi.io/personal-data": "customer.id, customer.email",
        },
    },
    PAYMENTS: {
        "category": "business",
        "partition_key_fields": ["order_number"],
        "deduplication": {"window_seconds": 3600},
        "annotations": {"nakadi.io/personal-data": "payer"},
    },
    SHIPMENTS: {
        "category": "data",
        "partition_key_fields": ["order_number"],
        "annotations": {"nakadi.io/personal-data": "data.recipient.id, data.recipient.email"},
    },
}


class Event(msgspec.Struct, frozen=True):
    """An event without the parts that the broker adds. `body` is its JSON as it is published."""

    event_type: str
    order_number: int
    customer: str
    eid: str
    members: Mapping[str, Any]
    body: bytes
    is_late: bool
    is_wrong: bool


class Day:
    """The events of a day, in the order in which they are published, from a seed."""

    def __init__(self, seed: int, orders: int, begin: datetime) -> None:
        self._drawn, self._begin = random.Random(seed), begin
        waiting: list[tuple[float, list[Event]]] = []
        for number in range(orders):
            waiting += self._order(number, orders)
        waiting.sort(key=lambda each: each[0])
        self.events: Sequence[Event] = [event for _, several in waiting for event in several]

    def _order(self, number: int, orders: int) -> list[tuple[float, list[Event]]]:
        """The events of an order and of its payments and shipments, each with its time."""
        drawn = self._drawn
        customer = {"id": f"c-{drawn.randrange(max(2, orders // 5))}", "email": f"{number}@example.org"}
        prices = [Decimal(drawn.randrange(100, 20_000)) / 100 for _ in range(drawn.randint(1, 4))]
        total = Decimal(0) if drawn.random() < 0.02 else sum(prices)
        items = [{"sku": f"s-{drawn.randrange(99)}", "price": price} for price in prices]
        order = {
            "order_number": number,
            "country": drawn.choice(COUNTRIES),
            "customer": customer,
            "items": items,
            "total": total,
        }
        found = [(moment := float(number), self._event_with_repetitions(ORDERS, number, customer["id"], order))]
        for amount in self._split_payment(total):
            moment += drawn.expovariate(1 / 20)
            details = {"fee": [(amount / 50).quantize(Decimal("0.01"))], "note": drawn.choice(("", "à la carte"))}
            payment = {"order_number": number, "payer": customer["id"], "amount": amount, "details": details}
            found.append((moment, self._event_with_repetitions(PAYMENTS, number, customer["id"], payment)))
        for state in STATES[: drawn.randint(0, len(STATES))]:
            moment += drawn.expovariate(1 / 20)
            data = {"order_number": number, "state": state, "recipient": customer}
            found.append((moment, self._event_with_repetitions(SHIPMENTS, number, customer["id"], data)))
        return found

    def _split_payment(self, total: Decimal) -> Sequence[Decimal]:
        """The payments of an order: none, all at once, or half of it and perhaps the rest."""
        half = (total / 2).quantize(Decimal("0.01"))
        return self._drawn.choice(((), (total,), (total,), (half,), (half, total - half)))

    def _event_with_repetitions(
        self, event_type: str, number: int, customer: str, members: Mapping[str, Any]
    ) -> list[Event]:
        """An event, perhaps repeated because its publisher got no answer, and perhaps preceded by an invalid one."""
        event = self._event(event_type, number, customer, members)
        before = []
        if self._drawn.random() < 0.03:
            before.append(self._event(event_type, number, customer, {**members, "order_number": "?"}, is_wrong=True))
        return [*before, event, event] if self._drawn.random() < 0.05 else [*before, event]

    def _event(
        self, event_type: str, number: int, customer: str, members: Mapping[str, Any], *, is_wrong: bool = False
    ) -> Event:
        is_late = self._drawn.random() < 0.05
        eid = str(UUID(int=self._drawn.getrandbits(128), version=4))
        occurred_at = self._begin - (LATE if is_late else timedelta())
        whole: dict[str, Any] = {"metadata": {"eid": eid, "occurred_at": occurred_at.isoformat()}}
        if event_type == SHIPMENTS:
            whole |= {"data_type": "shipment", "data_op": "C" if members["state"] == STATES[0] else "U"}
            whole["data"] = members
        else:
            whole |= members
        return Event(event_type, number, customer, eid, members, _JSON.encode(whole), is_late, is_wrong)


class Truth:
    """The published events, and the results that queries must therefore return."""

    def __init__(self) -> None:
        self._event_with_repetitions: list[Event] = []
        self._paid: set[str] = set()
        self.refused: Counter[str] = Counter()
        self.erased: Counter[str] = Counter()

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.is_wrong:
                self.refused[event.event_type] += 1
            elif event.event_type != PAYMENTS:
                self._event_with_repetitions.append(event)
            elif event.eid not in self._paid:
                # The event type has a deduplication window, within which the broker stores an event once.
                self._paid.add(event.eid)
                self._event_with_repetitions.append(event)

    def erase(self, customer: str) -> None:
        self.erased.update(event.event_type for event in self._event_with_repetitions if event.customer == customer)
        self._event_with_repetitions = [event for event in self._event_with_repetitions if event.customer != customer]

    def events_of(self, event_type: str) -> Sequence[Event]:
        return [event for event in self._event_with_repetitions if event.event_type == event_type]

    def customer_with_most_orders(self) -> str:
        return Counter(event.customer for event in self.events_of(ORDERS)).most_common(1)[0][0]

    # What the jobs' reports must contain

    def count_late(self, event_type: str) -> int:
        return sum(event.is_late for event in self.events_of(event_type))

    def count_repeated(self, event_type: str) -> int:
        events = self.events_of(event_type)
        return len(events) - len({event.eid for event in events})

    def free_orders(self) -> int:
        return sum(event.members["total"] == 0 for event in self.events_of(ORDERS))


def _orders_by_country(truth: Truth) -> list[tuple[Any, ...]]:
    events = truth.events_of(ORDERS)
    totals: Counter[str] = Counter()
    for event in events:
        totals[event.members["country"]] += event.members["total"]
    counts = Counter(event.members["country"] for event in events)
    return sorted((country, counts[country], totals[country]) for country in counts)


def _best_sold(truth: Truth) -> list[tuple[Any, ...]]:
    sold = Counter(item["sku"] for event in truth.events_of(ORDERS) for item in event.members["items"])
    return sorted(sold.items(), key=lambda each: (-each[1], each[0]))[:5]


def _unpaid_orders(truth: Truth) -> list[tuple[Any, ...]]:
    paid: Counter[int] = Counter()
    for event in truth.events_of(PAYMENTS):
        paid[event.order_number] += event.members["amount"]
    totals = {event.order_number: event.members["total"] for event in truth.events_of(ORDERS)}
    missing = [total - paid[number] for number, total in totals.items() if paid[number] < total]
    return [(len(missing), sum(missing, Decimal(0)))]


def _payments_and_details(truth: Truth) -> list[tuple[Any, ...]]:
    return sorted((event.eid, _JSON.encode(event.members["details"]).decode()) for event in truth.events_of(PAYMENTS))


def _newest_states(truth: Truth) -> list[tuple[Any, ...]]:
    newest = {event.order_number: event.members["state"] for event in truth.events_of(SHIPMENTS)}
    return sorted(Counter(newest.values()).items())


def _orders_by_customer(truth: Truth) -> list[tuple[Any, ...]]:
    return sorted(Counter(event.customer for event in truth.events_of(ORDERS)).items())


FIGURES: Mapping[str, tuple[str, Callable[[Truth], list[tuple[Any, ...]]]]] = {
    "orders by country": (
        "SELECT country, count(*), sum(total) FROM company_order_placed GROUP BY 1 ORDER BY 1",
        _orders_by_country,
    ),
    "goods that are sold most": (
        """
        SELECT item.sku, count(*) FROM (SELECT unnest(items) AS item FROM company_order_placed)
        GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5
        """,
        _best_sold,
    ),
    "orders that are not paid": (
        """
        SELECT count(*), coalesce(sum(total - paid), 0) FROM (
            SELECT total, coalesce(paid, 0) AS paid
            FROM (SELECT order_number, max(total) AS total FROM company_order_placed GROUP BY 1) placed
            LEFT JOIN (SELECT order_number, sum(amount) AS paid FROM company_payment_received GROUP BY 1) received
            ON placed.order_number = received.order_number
        ) WHERE paid < total
        """,
        _unpaid_orders,
    ),
    "what providers said, to the last digit": (
        "SELECT metadata.eid, details FROM company_payment_received ORDER BY 1",
        _payments_and_details,
    ),
    "where shipments are": (
        """
        SELECT state, count(*) FROM (
            SELECT data.state AS state, row_number() OVER (
                PARTITION BY data.order_number ORDER BY nakadi_timeline DESC, nakadi_offset DESC
            ) AS age FROM company_shipment_changed
        ) WHERE age = 1 GROUP BY 1 ORDER BY 1
        """,
        _newest_states,
    ),
    "orders by customer, in the last hours": (
        """
        SELECT customer.id, count(*) FROM company_order_placed WHERE nakadi_time > now() - INTERVAL 12 HOUR
        GROUP BY 1 ORDER BY 1
        """,
        _orders_by_customer,
    ),
}
"""Questions in SQL, and how the truth answers them. Spark takes them too, with `explode` for `unnest`."""

_JSON = msgspec.json.Encoder(decimal_format="number")
