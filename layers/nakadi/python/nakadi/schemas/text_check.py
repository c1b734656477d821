"""Checks texts of events against their schema, without parsing them to dictionaries.

A `BatchCheck` converts values that were parsed before. A caller that only wants to know whether events are valid can
leave out the parsing, which takes half of the time: msgspec reads each text as the type of the schema, and code checks
the values that no type can express, for all events together. An event that is not certainly valid by this check may
still be valid.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import orjson
from msgspec import UNSET, Struct, structs

from nakadi.schemas.batch_check import BatchCheck, PartCheck
from nakadi.schemas.untyped_parts import Elements, PathStep, values_at
from nakadi.schemas.values import RemainingSteps

TakeValues = Callable[[Sequence[Any]], Sequence[Any]]
"""The values within these values, at a step."""

PathOfPart = tuple[Sequence[PathStep], PartCheck]


class _NeedsParsedObjects(Exception):
    """Raised if a part needs objects as they are in the text, because a type keeps only the members that it names."""


class Step(Struct, frozen=True):
    """The step from values to the values within them. With `is_single`, each value leads to at most one value."""

    take: TakeValues
    is_single: bool = False

    def find_origins(self, values: Sequence[Any], taken: Sequence[Any], indexes: Iterable[int]) -> Iterable[int]:
        """The indexes of the original values of those at these indexes of `taken`."""
        if self.is_single and len(taken) == len(values):
            return indexes
        starts = list(accumulate((len(self.take((value,))) for value in values), initial=0))
        return [bisect_right(starts, each) - 1 for each in indexes]


class Place(Struct, frozen=True):
    """A place in events: the checks at the place, and the places within it. Checks of parts that have the first steps
    in common share them.
    """

    checks: Sequence[PartCheck]
    inner: Sequence[tuple[Step, Place]] = ()

    def find_doubtful(self, values: Sequence[Any], steps: RemainingSteps) -> set[int]:
        """The indexes of the values at this place that are not certainly valid, in themselves or in the values within
        them.
        """
        found: set[int] = set()
        for check in self.checks:
            found.update(check.find_doubtful(values, steps))
        for step, place in self.inner:
            taken = step.take(values)
            doubtful = place.find_doubtful(taken, steps)
            if doubtful:
                found.update(step.find_origins(values, taken, doubtful))
        return found


class TextCheck(Struct, frozen=True):
    """`read` converts the text of an event to a value of the schema's type, or raises. `root` is the place of whole
    events.
    """

    batch_check: BatchCheck
    read: Callable[[bytes], Any]
    root: Place

    def find_doubtful(self, texts: Sequence[bytes], steps: RemainingSteps) -> Iterator[int]:
        """The indexes of the events that are not certainly valid. The texts are those of published events, and
        therefore strict JSON.
        """
        return self._find_between(texts, 0, len(texts), steps)

    def _find_between(self, texts: Sequence[bytes], first: int, last: int, steps: RemainingSteps) -> Iterator[int]:
        if self.batch_check.fits(texts[first:last]):
            yield from self._read_and_check(texts, first, last, steps)
        elif last - first == 1:
            yield first
        else:
            middle = (first + last) // 2
            yield from self._find_between(texts, first, middle, steps)
            yield from self._find_between(texts, middle, last, steps)

    def _read_and_check(self, texts: Sequence[bytes], first: int, last: int, steps: RemainingSteps) -> Sequence[int]:
        read, values, doubtful = self.read, [], []
        for index, text in enumerate(texts[first:last], first):
            try:
                values.append(read(text))
            except (msgspec.MsgspecError, RecursionError):
                doubtful.append(index)
        found = self.root.find_doubtful(values, steps)
        if found:
            unread = frozenset(doubtful)
            indexes = [index for index in range(first, last) if index not in unread]
            doubtful += [indexes[each] for each in found]
        return sorted(doubtful)


def make_text_check(batch_check: BatchCheck, prepare: Callable[[Any], Any] | None = None) -> TextCheck:
    """The check of texts that gives the same results as a check of batches. `prepare` changes events before they are
    checked.

    Events are parsed to dictionaries if they are prepared, or if a part needs objects as they are in the text.
    """
    events = get_type_hints(batch_check.type, include_extras=True)["events"]
    kind = _element_type(events, Elements.OF_LIST)
    parts = [(each.path, each) for each in batch_check.checks_of_parts]
    if prepare is None:
        try:
            return TextCheck(batch_check, msgspec.json.Decoder(kind).decode, _make_place(kind, parts))
        except _NeedsParsedObjects:
            pass
    return TextCheck(batch_check, _make_reader_of_objects(kind, prepare), _make_untyped_place(parts))


def _make_reader_of_objects(kind: Any, prepare: Callable[[Any], Any] | None) -> Callable[[bytes], Any]:
    def read(text: bytes) -> Any:
        value = orjson.loads(text)
        if prepare is not None:
            value = prepare(value)
        msgspec.convert(value, kind)
        return value

    return read


def _make_place(kind: Any, parts: Sequence[PathOfPart]) -> Place:
    """The place of values of a type, in which these parts are checked."""
    if _without_null(kind) is Any:
        return _make_untyped_place(parts)
    by_step: dict[PathStep, list[PathOfPart]] = defaultdict(list)
    for path, part in parts:
        if path:
            by_step[path[0]].append((path[1:], part))
        elif _holds_struct(kind):
            raise _NeedsParsedObjects
    return Place([part for path, part in parts if not path], [_make_step(kind, *each) for each in by_step.items()])


def _make_untyped_place(parts: Sequence[PathOfPart]) -> Place:
    """The place of values as they were parsed."""
    within = [(Step(partial(values_at, path)), Place([part])) for path, part in parts if path]
    return Place([part for path, part in parts if not path], within)


def _make_step(kind: Any, step: PathStep, parts: Sequence[PathOfPart]) -> tuple[Step, Place]:
    if isinstance(step, Elements):
        return Step(partial(values_at, (step,))), _make_place(_element_type(kind, step), parts)
    there = _without_null(kind)
    member = next(each for each in structs.fields(there) if each.encode_name == step)
    take = _member_taker(member, may_be_null=kind is not there)
    return Step(take, is_single=True), _make_place(member.type, parts)


def _member_taker(member: structs.FieldInfo, *, may_be_null: bool) -> TakeValues:
    value_of, is_required = attrgetter(member.name), member.required
    if is_required and not may_be_null:
        return lambda values: list(map(value_of, values))

    def take(values: Sequence[Any]) -> Sequence[Any]:
        found = [value_of(each) for each in values if each is not None]
        return found if is_required else [each for each in found if each is not UNSET]

    return take


def _element_type(kind: Any, elements: Elements) -> Any:
    arguments = get_args(_without_null(kind))
    return arguments[0 if elements is Elements.OF_LIST else 1]


def _without_null(kind: Any) -> Any:
    """The type of the values that exist and are not null."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, UnionType) or type(kind).__name__ == "_UnionGenericAlias":
        [*others] = [each for each in get_args(kind) if each not in (type(None), msgspec.UnsetType)]
        return _without_null(others[0]) if len(others) == 1 else kind
    return kind


def _holds_struct(kind: Any) -> bool:
    kind = _without_null(kind)
    return (isinstance(kind, type) and issubclass(kind, Struct)) or any(map(_holds_struct, get_args(kind)))
