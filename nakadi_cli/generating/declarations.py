"""The common parts of all languages: records with fields, choices of texts, and the types of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from msgspec import Struct


class Scalar(Enum):
    TEXT = "text"
    MOMENT = "moment"
    """A text in the format `date-time`."""
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ANYTHING = "anything"
    """Any JSON value, null too."""


class ListOf(Struct, frozen=True):
    item: Type


class MapOf(Struct, frozen=True):
    """An object whose member names are data."""

    value: Type


class Nullable(Struct, frozen=True):
    value: Type


class OneOf(Struct, frozen=True):
    """A value of any of these types. There are at least two, and none is null."""

    types: tuple[Type, ...]


class Reference(Struct, frozen=True):
    """A record or a choice by its name. `is_recursive` means that the record contains itself through this reference."""

    name: str
    is_record: bool = True
    is_recursive: bool = False


Type = Scalar | ListOf | MapOf | Nullable | OneOf | Reference


class Field(Struct, frozen=True):
    """A member of an object: `member` is its name in JSON, and can be any text."""

    member: str
    type: Type
    is_required: bool
    description: str = ""


class Record(Struct, frozen=True):
    name: str
    fields: tuple[Field, ...]
    description: str = ""


class Choice(Struct, frozen=True):
    """One of several texts."""

    name: str
    values: tuple[str, ...]


class Declarations(Struct, frozen=True):
    """The declarations of one source file; `sources` name the event types, with their versions."""

    sources: tuple[str, ...]
    declared: tuple[Record | Choice, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(each for each in self.declared if isinstance(each, Record))

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(each for each in self.declared if isinstance(each, Choice))

    def parts(self) -> Iterator[Type]:
        """Every type of every field, and the types within it."""
        return (part for record in self.records for each in record.fields for part in parts_of(each.type))


def without_null(kind: Type) -> Type:
    return kind.value if isinstance(kind, Nullable) else kind


def one_of(types: Iterable[Type]) -> Type:
    """The type of a value that has any of these types, in its simplest form."""
    flat: dict[Type, None] = {}
    has_null = False
    for each in types:
        has_null |= isinstance(each, Nullable)
        plain = without_null(each)
        flat.update(dict.fromkeys(plain.types if isinstance(plain, OneOf) else (plain,)))
    if Scalar.ANYTHING in flat or not flat:
        return Scalar.ANYTHING
    if Scalar.NUMBER in flat:
        flat.pop(Scalar.INTEGER, None)
    if Scalar.TEXT in flat:
        flat = {each: None for each in flat if each is not Scalar.MOMENT and not is_choice(each)}
    kinds = tuple(flat)
    whole = kinds[0] if len(kinds) == 1 else OneOf(kinds)
    return Nullable(whole) if has_null else whole


def is_choice(kind: Type) -> bool:
    return isinstance(kind, Reference) and not kind.is_record


def references_in(kind: Type) -> Iterator[Reference]:
    return (each for each in parts_of(kind) if isinstance(each, Reference))


def parts_of(kind: Type) -> Iterator[Type]:
    """The type and all types within it, but not those inside records."""
    waiting = [kind]
    while waiting:
        part = waiting.pop()
        yield part
        match part:
            case ListOf(item=inner) | MapOf(value=inner) | Nullable(value=inner):
                waiting.append(inner)
            case OneOf(types=several):
                waiting.extend(several)
