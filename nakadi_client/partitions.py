"""The partition that the broker chooses for an event of an event type with the strategy `hash`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nakadi_client.errors import BadEvent

Key = Callable[[Any], str]


def partition_of(keys: Sequence[object], partitions: Sequence[str] | int) -> str:
    """Return the partition for the values of `partition_key_fields`, for text, integers, booleans and None.

    `partitions` are the names of the partitions of the event type, or their number.
    """
    names = [str(number) for number in range(partitions)] if isinstance(partitions, int) else list(partitions)
    total = _as_signed_32_bit(sum(_java_hash(_text(key)) for key in keys))
    # This is the absolute value of Java's remainder, which has the sign of the sum. The names are sorted as texts: 0,
    # 1, 10, 11, 2.
    return sorted(names)[abs(total) % len(names)]


def key_at(*paths: str) -> Key:
    """Return a function that joins the values at these dotted paths of an event to a key.

    Give the `partition_key_fields` of the event type, so that all events of a key are in the same partition:
    `Producer(url, "order.placed", key=key_at("order_number"))`. It reads mappings and attributes.
    """
    split = [path.split(".") for path in paths]

    def key(event: Any) -> str:
        return "\0".join(str(_value(event, path)) for path in split)

    return key


def _value(event: Any, path: Sequence[str]) -> Any:
    for name in path:
        try:
            event = event[name] if isinstance(event, Mapping) else getattr(event, name)
        except (KeyError, AttributeError):
            raise BadEvent(f"The event has no {'.'.join(path)}, which is its key.") from None
    return event


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    raise TypeError("Only text, integers, booleans and None have the same form as keys in every broker.")


def _java_hash(text: str) -> int:
    found = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(units), 2):
        found = (31 * found + (units[place] << 8 | units[place + 1])) & 0xFFFF_FFFF
    return found


def _as_signed_32_bit(number: int) -> int:
    number &= 0xFFFF_FFFF
    return number - 0x1_0000_0000 if number >= 0x8000_0000 else number
