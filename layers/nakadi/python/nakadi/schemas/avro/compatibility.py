"""Whether readers with one Avro schema can read events written with another.

The rules, their messages and their order match `SchemaCompatibility` in Avro's library for Java, version 1.11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import UNSET, Struct

from nakadi.model.outcomes import Invalid
from nakadi.schemas.avro.types import (
    ArrayType,
    AvroType,
    EnumType,
    FixedType,
    MapType,
    RecordField,
    RecordType,
    UnionType,
    branch_name,
)

# This number of steps takes about a second at worst.
MAX_PAIRS = 200_000
# The number of items shown from a long list; the first ones are enough to begin with.
MAX_INCOMPATIBILITIES = 100


class IncompatibilityType(StrEnum):
    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"


class Incompatibility(Struct, frozen=True):
    """`location` is a JSON pointer into the reader's schema. `is_backward` is whether the reader has the new schema."""

    type: IncompatibilityType
    location: str
    message: str
    is_backward: bool = False

    def __str__(self) -> str:
        return f"{{ type:{self.type}, location:{self.location}, message:{self.message} }}"


# The other types whose values a primitive type can read.
_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}

Location = tuple[str, ...]
Found = tuple[Incompatibility, ...]

NOTHING: Found = ()


def find_incompatibilities(old: AvroType, new: AvroType) -> Sequence[Incompatibility]:
    """Every objection to the new schema: first those of readers with the new schema, then those of readers with the old
    one.

    Raises `Invalid` if the comparison takes too long.
    """
    backward = (
        Incompatibility(each.type, each.location, each.message, is_backward=True)
        for each in reading_problems(reader=new, writer=old)
    )
    return (*backward, *reading_problems(reader=old, writer=new))


def reading_problems(*, reader: AvroType, writer: AvroType) -> Sequence[Incompatibility]:
    try:
        return _Comparison().compare(reader, writer, ())
    except RecursionError as error:
        raise _too_entangled_error() from error


def _too_entangled_error() -> Invalid:
    return Invalid("Failed to evolve avro schema due to its size: it is too entangled to be compared with the old one")


class _Comparison:
    """Compares each pair of types once: a pair whose comparison is in progress counts as compatible."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], Found] = {}

    def compare(self, reader: AvroType, writer: AvroType, location: Location) -> Found:
        pair = (id(reader), id(writer))
        if pair not in self._results:
            if len(self._results) >= MAX_PAIRS:
                raise _too_entangled_error()
            self._results[pair] = NOTHING
            self._results[pair] = tuple(self._find(reader, writer, location))[:MAX_INCOMPATIBILITIES]
        return self._results[pair]

    def _find(self, reader: AvroType, writer: AvroType, at: Location) -> Iterator[Incompatibility]:
        match reader, writer:
            case ArrayType(read), ArrayType(written):
                yield from self.compare(read, written, (*at, "items"))
            case MapType(read), MapType(written):
                yield from self.compare(read, written, (*at, "values"))
            case (FixedType(), FixedType()) | (EnumType(), EnumType()) | (RecordType(), RecordType()):
                yield from self._compare_named(reader, writer, at)
            case (UnionType(), _) | (_, UnionType()):
                yield from self._compare_unions(reader, writer, at)
            case _:
                if reader.kind != writer.kind and writer.kind not in _PROMOTIONS.get(reader.kind, ()):
                    message = f"reader type: {reader.kind.upper()} not compatible with writer type: "
                    yield _incompatibility(IncompatibilityType.TYPE_MISMATCH, at, message + writer.kind.upper())

    def _compare_named(self, reader: AvroType, writer: AvroType, at: Location) -> Iterator[Incompatibility]:
        if (expected := branch_name(writer)).rpartition(".")[2] != branch_name(reader).rpartition(".")[2]:
            yield _incompatibility(IncompatibilityType.NAME_MISMATCH, (*at, "name"), f"expected: {expected}")
        match reader, writer:
            case FixedType(), FixedType():
                if reader.size != writer.size:
                    message = f"expected: {writer.size}, found: {reader.size}"
                    yield _incompatibility(IncompatibilityType.FIXED_SIZE_MISMATCH, (*at, "size"), message)
            case EnumType(), EnumType():
                missing = sorted(set(writer.symbols) - set(reader.symbols))
                if missing and reader.default is None:
                    message = f"[{', '.join(missing)}]"
                    yield _incompatibility(IncompatibilityType.MISSING_ENUM_SYMBOLS, (*at, "symbols"), message)
            case RecordType(), RecordType():
                yield from self._compare_fields(reader, writer, (*at, "fields"))

    def _compare_unions(self, reader: AvroType, writer: AvroType, at: Location) -> Iterator[Incompatibility]:
        """Compare two types, at least one of which is a union. Paths of problems within branches begin at the
        branch.
        """
        match reader, writer:
            case UnionType(), UnionType(branches):
                for index, branch in enumerate(branches):
                    if self.compare(reader, branch, ()):
                        yield _missing_branch((*at, str(index)), branch)
            case _, UnionType(branches):
                for branch in branches:
                    yield from self.compare(reader, branch, ())
            case UnionType(branches), _:
                if all(self.compare(branch, writer, ()) for branch in branches):
                    yield _missing_branch(at, writer)

    def _compare_fields(self, reader: RecordType, writer: RecordType, at: Location) -> Iterator[Incompatibility]:
        written = {each.name: each for each in writer.known_fields}
        for index, field in enumerate(reader.known_fields):
            found = _field_of_writer(field, written)
            if found is not None:
                yield from self.compare(field.type, found.type, (*at, str(index), "type"))
            elif field.default is UNSET and not (isinstance(field.type, EnumType) and field.type.default is not None):
                yield _incompatibility(
                    IncompatibilityType.READER_FIELD_MISSING_DEFAULT_VALUE, (*at, str(index)), field.name
                )


def _field_of_writer(field: RecordField, written: dict[str, RecordField]) -> RecordField | None:
    return next((written[name] for name in (field.name, *field.aliases) if name in written), None)


def _missing_branch(at: Location, branch: AvroType) -> Incompatibility:
    message = f"reader union lacking writer type: {branch.kind.upper()}"
    return _incompatibility(IncompatibilityType.MISSING_UNION_BRANCH, at, message)


def _incompatibility(of: IncompatibilityType, at: Location, message: str) -> Incompatibility:
    return Incompatibility(of, f"/{'/'.join(at)}", message)
