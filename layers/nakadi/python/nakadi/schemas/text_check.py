"""Holds all events of a text to their schema at once, without parsing them to dictionaries.

A check of a batch converts values that were parsed before. Who only wants to know whether events are valid can leave
out the parsing, which takes half of the time: msgspec reads the text as the type of the schema, and code checks the
values in it that no type can express. What the check does not accept may be valid all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, structs

from nakadi.schemas.batch_check import BatchCheck, PartCheck
from nakadi.schemas.untyped_parts import Elements, PathStep, values_at
from nakadi.schemas.values import RemainingSteps, StepsExhausted

TakeValues = Callable[[Sequence[Any]], Sequence[Any]]
"""The values that a step leads to, from all of these values."""


class TextCheck(Struct, frozen=True):
    """`decode` reads events, in an object that has them as `events`, as the type of their schema. Beside each check of
    a part are the steps to its values.
    """

    batch_check: BatchCheck
    decode: Callable[[bytes], Any]
    checks_of_parts: Sequence[tuple[Sequence[TakeValues], PartCheck]]

    def accepts(self, array: bytes, steps: RemainingSteps) -> bool:
        """Whether all events of a JSON array are certainly valid. They were published, and so are strict JSON."""
        if not self.batch_check.fits(array):
            return False
        try:
            events = self.decode(b'{"events":%b}' % array).events
            return all(part.accepts_values(reduce(_take, taken, events), steps) for taken, part in self.checks_of_parts)
        except (msgspec.MsgspecError, StepsExhausted, RecursionError):
            return False


def make_text_check(batch_check: BatchCheck) -> TextCheck | None:
    """The check of texts that says the same; None if a part needs objects as they are in the text."""
    events = get_type_hints(batch_check.type, include_extras=True)["events"]
    found = [
        (_steps_to_values(_element_type(events, Elements.OF_LIST), each.path), each)
        for each in batch_check.checks_of_parts
    ]
    checks = [(steps, each) for steps, each in found if steps is not None]
    if len(checks) < len(found):
        return None
    return TextCheck(batch_check, msgspec.json.Decoder(batch_check.type).decode, checks)


def _take(values: Sequence[Any], step: TakeValues) -> Sequence[Any]:
    return step(values)


def _steps_to_values(kind: Any, path: Sequence[PathStep]) -> Sequence[TakeValues] | None:
    """The steps from values of a type to those at a path; None if these are not as they are in the text."""
    kind = _without_null(kind)
    if kind is Any:
        return [lambda values: values_at(path, values)]
    if not path:
        return None if _holds_struct(kind) else []
    step = path[0]
    if isinstance(step, Elements):
        rest = _steps_to_values(_element_type(kind, step), path[1:])
        return None if rest is None else [lambda values: values_at((step,), values), *rest]
    member = next(each for each in structs.fields(kind) if each.encode_name == step)
    rest = _steps_to_values(member.type, path[1:])
    return None if rest is None else [_member_taker(member.name), *rest]


def _member_taker(name: str) -> TakeValues:
    member = attrgetter(name)

    def take(values: Sequence[Any]) -> Sequence[Any]:
        return [found for found in [member(each) for each in values if each is not None] if found is not UNSET]

    return take


def _element_type(kind: Any, elements: Elements) -> Any:
    arguments = get_args(_without_null(kind))
    return arguments[0 if elements is Elements.OF_LIST else 1]


def _without_null(kind: Any) -> Any:
    """The type of the values that are there, and not null."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, UnionType) or type(kind).__name__ == "_UnionGenericAlias":
        [*others] = [each for each in get_args(kind) if each not in (type(None), msgspec.UnsetType)]
        return _without_null(others[0]) if len(others) == 1 else kind
    return kind


def _holds_struct(kind: Any) -> bool:
    kind = _without_null(kind)
    return (isinstance(kind, type) and issubclass(kind, Struct)) or any(map(_holds_struct, get_args(kind)))
