"""What do schemas cost? Compares compiling a schema and validating an event with parsing the event, which is always
necessary.

PYTHONPATH=layers/nakadi/python .venv/bin/python benchmarks/schemas.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.schemas.document import effective_schema
from nakadi.schemas.validation import compile_validator

NAME = "shop.order-placed"


def main() -> None:
    for number in (10, 100, 1000):
        schema = effective_business_schema(
            {"properties": {f"property_{index}": leaf_schema(index) for index in range(number)}}
        )
        print(f"compile, {number:5} properties: {1000 * best_of(5, 1, partial(compile_validator, schema)):8.2f} ms")
    validator = compile_validator(effective_business_schema(ORDER))
    text = orjson.dumps(an_order())
    event = orjson.loads(text)
    assert validator.accepts(event), validator.explain(event)
    wrong = {**event, "amount": {"value": "1", "currency": "EUR"}}
    print(f"an order of {len(text)} bytes")
    for what, action in (
        ("orjson.loads", lambda: orjson.loads(text)),
        ("accepts", lambda: validator.accepts(event)),
        ("refuses", lambda: validator.accepts(wrong)),
        ("explains", lambda: validator.explain(wrong)),
    ):
        print(f"{what:>14}: {1_000_000 * best_of(7, 5000, action):8.2f} us")


def effective_business_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return effective_schema(
        schema,
        event_type=NAME,
        category=Category.BUSINESS,
        mode=CompatibilityMode.COMPATIBLE,
        cleanup_policy=CleanupPolicy.DELETE,
    )


def leaf_schema(index: int) -> dict[str, Any]:
    leaves = (
        {"type": "string", "minLength": 1},
        {"type": "integer", "minimum": 0},
        {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]},
        {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
    )
    return leaves[index % len(leaves)]


ADDRESS = {
    "type": "object",
    "properties": {each: {"type": "string"} for each in ("name", "street", "zip", "city", "country")},
    "required": ["name", "street", "city", "country"],
}
LINE = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "minLength": 1},
        "quantity": {"type": "integer", "minimum": 1},
        "price": {"type": "number"},
    },
    "required": ["sku", "quantity", "price"],
}
ORDER = {
    "properties": {
        "order_number": {"type": "string"},
        "customer": {"type": "object", "properties": {"id": {"type": "string"}, "address": ADDRESS}},
        "lines": {"type": "array", "items": LINE},
        "amount": {
            "type": "object",
            "properties": {"value": {"type": "number"}, "currency": {"type": "string", "format": "iso-4217"}},
            "required": ["value", "currency"],
        },
        "channel": {"type": "string", "enum": ["web", "app", "store"]},
        "note": {"type": ["string", "null"]},
    },
    "required": ["order_number", "customer", "lines"],
}


def an_order() -> dict[str, Any]:
    return {
        "metadata": {
            "eid": "d765de34-09c0-4bbb-8b1e-7160a33a0791",
            "occurred_at": "2026-11-21T12:00:00.123Z",
            "event_type": NAME,
            "flow_id": "JAh6xH4OQhCJ9PutIV_RYw",
        },
        "order_number": "24873243241",
        "customer": {
            "id": "c-1029384756",
            "address": {
                "name": "Ada Lovelace",
                "street": "St James's Square 12",
                "zip": "SW1Y 4JH",
                "city": "London",
                "country": "GB",
            },
        },
        "lines": [{"sku": f"sku-000{index}", "quantity": index, "price": 9.95} for index in range(1, 5)],
        "amount": {"value": 99.5, "currency": "GBP"},
        "channel": "web",
        "note": None,
    }


def best_of(rounds: int, times: int, action: Callable[[], object]) -> float:
    return min(measure(times, action) for _ in range(rounds))


def measure(times: int, action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - begun) / times


if __name__ == "__main__":
    main()
