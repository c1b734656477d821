"""What does publishing an event cost, depending on its shape? Measures the CPU time of a whole batch in one process, on
the memory engine.

PYTHONPATH=layers/nakadi/python .venv/bin/python benchmarks/event_shapes.py [--rounds 7] [--only pattern] [--json FILE]

Each round publishes one batch of each shape; a shape's figure is its lowest value. The last column compares the cost of
a kilobyte with that of a plain order: it shows what the shape adds to parsing and storing text.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct

from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.settings import Settings
from nakadi.http.bodies import ObjectReader
from nakadi.http.drafts import event_type_draft
from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.publishing.batch import BatchStatus

BATCH_SIZE = 100
TEXT = {"type": "string"}
DRAW = random.Random(1)  # draws values for events, not keys


class Shape(Struct, frozen=True):
    """Events of an event type: how the event type differs from the plain one, and a function that makes its events."""

    event_type: Mapping[str, Any]
    make_event: Callable[[], dict[str, Any]]
    spell: Callable[[Any], bytes] = orjson.dumps


def random_metadata(**further: Any) -> dict[str, Any]:
    return {"eid": str(uuid.UUID(int=DRAW.getrandbits(128))), "occurred_at": "2026-11-21T12:00:00Z", **further}


def random_words(count: int) -> str:
    return " ".join(f"{DRAW.getrandbits(32):x}" for _ in range(count))


def random_order(**further: Any) -> dict[str, Any]:
    return {
        "metadata": random_metadata(),
        "order_number": f"o-{DRAW.randrange(10**6)}",
        "customer": {"id": f"c-{DRAW.randrange(10**5)}", "country": "DE"},
        "lines": [
            {"sku": f"s-{DRAW.randrange(10**4)}", "quantity": DRAW.randint(1, 9), "price": DRAW.randrange(9999) / 100}
            for _ in range(3)
        ],
        "note": random_words(25),
        **further,
    }


LINE = {"type": "object", "properties": {"sku": TEXT, "quantity": {"type": "integer"}, "price": {"type": "number"}}}
ORDER: dict[str, Any] = {
    "order_number": TEXT,
    "customer": {"type": "object", "properties": {"id": TEXT, "country": TEXT}},
    "lines": {"type": "array", "items": LINE},
    "note": TEXT,
}


def make_shape(
    properties: Mapping[str, Any] | None = None,
    make_event: Callable[[], dict[str, Any]] = random_order,
    spell: Callable[[Any], bytes] = orjson.dumps,
    schema: Mapping[str, Any] | None = None,
    **event_type: Any,
) -> Shape:
    """A shape whose schema is that of an order with other properties, or with additional keywords."""
    said = {"type": "object", "properties": {**ORDER, **(properties or {})}, "required": ["order_number"]}
    return Shape({"schema": {**said, **(schema or {})}, **event_type}, make_event, spell)


def hash_options(*fields: str) -> dict[str, Any]:
    return {"partition_strategy": "hash", "partition_key_fields": list(fields)}


def random_tree(levels: int) -> dict[str, Any]:
    return {"name": random_words(2), **({"children": [random_tree(levels - 1) for _ in range(2)]} if levels else {})}


def data_change() -> dict[str, Any]:
    about = random_order()
    return {"metadata": about.pop("metadata"), "data_type": "order", "data_op": "C", "data": about}


NODE = {
    "type": "object",
    "properties": {"name": TEXT, "children": {"type": "array", "items": {"$ref": "#/definitions/node"}}},
}
CARD = {"type": "object", "required": ["card"], "properties": {"card": TEXT}}
BANK = {"type": "object", "required": ["iban"], "properties": {"iban": TEXT}}

SMALLEST = "100 bytes"

SHAPES: Mapping[str, Shape] = {
    "plain": make_shape(),
    "pattern": make_shape({"order_number": {"type": "string", "pattern": "^o-[0-9]+$"}}),
    "pattern in a list": make_shape(
        {"lines": {"type": "array", "items": {**LINE, "properties": {"sku": {"type": "string", "pattern": "^s-"}}}}}
    ),
    "format date-time": make_shape(
        {"at": {"type": "string", "format": "date-time"}}, lambda: random_order(at="2026-11-21T12:00:00Z")
    ),
    "formats": make_shape(
        {
            "at": {"type": "string", "format": "date-time"},
            "mail": {"type": "string", "format": "email"},
            "ip": {"type": "string", "format": "ipv4"},
        },
        lambda: random_order(at="2026-11-21T12:00:00+01:00", mail="a@example.org", ip="10.0.0.1"),
    ),
    "enum": make_shape({"state": {"type": "string", "enum": ["new", "paid"]}}, lambda: random_order(state="new")),
    "enum without a type": make_shape({"state": {"enum": ["new", "paid", None, 1]}}, lambda: random_order(state="new")),
    "several types": make_shape({"note": {"type": ["string", "array"]}}),
    "multipleOf": make_shape({"amount": {"type": "number", "multipleOf": 0.01}}, lambda: random_order(amount=12.34)),
    "anyOf": make_shape({"payment": {"anyOf": [CARD, BANK]}}, lambda: random_order(payment={"iban": random_words(2)})),
    "oneOf": make_shape({"payment": {"oneOf": [CARD, BANK]}}, lambda: random_order(payment={"iban": random_words(2)})),
    "oneOf at the root": make_shape(schema={"oneOf": [{"required": ["note"]}, {"required": ["text"]}]}),
    "$ref": make_shape(
        {"lines": {"type": "array", "items": {"$ref": "#/definitions/line"}}}, schema={"definitions": {"line": LINE}}
    ),
    "recursion": make_shape(
        {"tree": {"$ref": "#/definitions/node"}},
        lambda: random_order(tree=random_tree(2)),
        schema={"definitions": {"node": NODE}},
    ),
    "uniqueItems": make_shape(
        {"tags": {"type": "array", "items": TEXT, "uniqueItems": True}},
        lambda: random_order(tags=random_words(8).split()),
    ),
    "patternProperties": make_shape(
        {"labels": {"type": "object", "patternProperties": {"^x-": TEXT}}}, lambda: random_order(labels={"x-a": "b"})
    ),
    "minProperties": make_shape(
        {"labels": {"type": "object", "minProperties": 1}}, lambda: random_order(labels={"a": "b"})
    ),
    "members that no schema names": make_shape(make_event=lambda: random_order(n=1, more={"x": [1, 2]})),
    "closed": make_shape(compatibility_mode="compatible"),
    "hash": make_shape(**hash_options("order_number")),
    "hash of two": make_shape(**hash_options("order_number", "customer.id")),
    "user_defined": make_shape(
        make_event=lambda: random_order(metadata=random_metadata(partition=str(DRAW.randrange(8)))),
        partition_strategy="user_defined",
    ),
    "compacted": make_shape(
        make_event=lambda: random_order(metadata=random_metadata(partition_compaction_key=random_words(1))),
        cleanup_policy="compact",
    ),
    "data": make_shape(make_event=data_change, category="data"),
    "undefined": make_shape(
        make_event=lambda: {k: v for k, v in random_order().items() if k != "metadata"},
        category="undefined",
        enrichment_strategies=[],
    ),
    "richer metadata": make_shape(
        make_event=lambda: random_order(
            metadata=random_metadata(flow_id=random_words(1), parent_eids=[str(uuid.uuid4())])
        )
    ),
    "not ASCII": make_shape(make_event=lambda: random_order(note="Größe " * 40)),
    "escapes": make_shape(make_event=lambda: random_order(note='"quoted"\n' * 20)),
    "blanks": make_shape(spell=lambda events: json.dumps(events).encode()),
    "pretty": make_shape(spell=lambda events: orjson.dumps(events, option=orjson.OPT_INDENT_2)),
    "large integers": make_shape(make_event=lambda: random_order(n=2**62 + DRAW.getrandbits(40))),
    SMALLEST: make_shape(make_event=lambda: {"metadata": random_metadata(), "order_number": "1"}),
    "10 KB": make_shape(make_event=lambda: random_order(note=random_words(1100))),
    "200 numbers": make_shape(
        {"values": {"type": "array", "items": {"type": "number"}}},
        lambda: random_order(values=[DRAW.random() for _ in range(200)]),
    ),
    "100 members": make_shape(
        {f"p{n}": TEXT for n in range(100)}, lambda: random_order(**{f"p{n}": random_words(1) for n in range(100)})
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=10, help="of each shape, in a round")
    parser.add_argument("--only", help="shapes with this in their name")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    shapes = {name: each for name, each in SHAPES.items() if options.only is None or options.only in name}
    shapes = {"plain": SHAPES["plain"], **shapes}
    broker = open_broker(Settings(registry="memory:", event_log="memory:"))
    bodies = {name: each.spell([each.make_event() for _ in range(BATCH_SIZE)]) for name, each in shapes.items()}
    for number, each in enumerate(shapes.values()):
        register(broker, f"type-{number}", each)
    least = dict.fromkeys(shapes, float("inf"))
    for _ in range(1 + options.rounds):  # the first one encounters the members, and compiles the schema
        for number, name in enumerate(shapes):
            least[name] = min(least[name], seconds_of(broker, f"type-{number}", bodies[name], options.batches))
    figures = report(least, bodies)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def register(broker: BrokerServices, name: str, each: Shape) -> None:
    document = {
        "name": name,
        "owning_application": "benchmark",
        "category": "business",
        "enrichment_strategies": ["metadata_enrichment"],
        "partition_strategy": "random",
        "compatibility_mode": "none",
        "default_statistic": {
            "messages_per_minute": 1,
            "message_size": 1,
            "read_parallelism": 8,
            "write_parallelism": 8,
        },
        **each.event_type,
        "schema": {"type": "json_schema", "schema": json.dumps(each.event_type["schema"])},
    }
    broker.registration.creation.create(event_type_draft(ObjectReader.from_value(document)), UNAUTHENTICATED)


def seconds_of(broker: BrokerServices, name: str, body: bytes, batches: int) -> float:
    """The CPU seconds of a batch."""
    begin = time.process_time()
    for _ in range(batches):
        outcome = broker.publisher.publish(name, body, UNAUTHENTICATED, flow_id="benchmark")
        assert outcome.status is BatchStatus.STORED, outcome.items[0]
    return (time.process_time() - begin) / batches


def report(least: Mapping[str, float], bodies: Mapping[str, bytes]) -> Mapping[str, float]:
    """Print the figures, and return those that have an aim."""
    per_kilobyte = {name: 1e6 * seconds / (len(bodies[name]) / 1024) for name, seconds in least.items()}
    print(f"{'':30} {'bytes':>7} {'us an event':>12} {'us a KB':>8} {'of plain, a KB':>15}")
    for name, seconds in least.items():
        size, ratio = len(bodies[name]) // BATCH_SIZE, per_kilobyte[name] / per_kilobyte["plain"]
        print(f"{name:30} {size:7} {1e6 * seconds / BATCH_SIZE:12.2f} {per_kilobyte[name]:8.2f} {ratio:15.2f}")
    of_plain = {name: each / per_kilobyte["plain"] for name, each in per_kilobyte.items() if name != "plain"}
    median, most = statistics.median(of_plain.values()), max(of_plain.values())
    print(f"median {median:.2f}, most {most:.2f}")
    return {
        "median_of_plain": median,
        "most_of_plain": most,
        "most_of_plain_but_small": max(each for name, each in of_plain.items() if name != SMALLEST),
        **{f"{name}_us_per_kb": each for name, each in per_kilobyte.items()},
    }


if __name__ == "__main__":
    main()
