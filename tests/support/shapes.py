"""Draws shapes of events: schemas with everything that JSON Schema offers, and texts of values that they accept. The
values of each type include some that columns of tables cannot hold unchanged.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

USUAL_NAMES = ("a", "b", "c")

STRANGE_NAMES = (
    *(
        "A",
        "",
        " ",
        "a.b",
        "a`b",
        "a-b",
        'a"b',
        "a'b",
        "a\\b",
        'a":',
        "a/b~c",
        "ä",
        "😀",
        "\u0001n",
        "$ref",
        "1",
        "n" * 121,
    ),
    # Reserved words of Spark, and names of the job's own columns and fields.
    *(
        "select",
        "element",
        "key",
        "value",
        "list",
        "null",
        "line",
        "head",
        "file",
        "topic",
        "partition",
        "offset",
        "time",
    ),
    *("event", "owner", "timeline", "doubtful", "misfit", "_misfit", "stamped", "data", "data_op", "each0", "whole"),
    *("nakadi_offset", "NAKADI_KEY", "nakadi_other", "published_by", "metadata"),
    # Names of additional columns of `a`, and names that look like such.
    *("a__string", "a__double", "a__bigint", "a__string_array", "b__", "__c", "a__latest"),
)

NUMBERS = (
    *("0", "-1.5", "0.30000000000000004", "1e5", "9007199254740993", "0.1000000000000000000001", "12.340", "1e-300"),
    *(
        "-0",
        "-0.0",
        "1.10",
        "12345678.9",
        "0.0001",
        "-1E+2",
        "5e-324",
        "2.2250738585072014e-308",
        "1.7976931348623157E+308",
        "1E0",
        "100000000000000000000.5",
    ),
)
INTEGERS = ("0", "-7", "1", "9223372036854775807", "-9223372036854775808", "9007199254740993")
TEXTS = (
    *('""', '"x"', '"1.5"', '"true"', '"null"', '"{}"', '"[]"', r'"\u0041\ud83d\ude00"', r'"\\ud83d\""', r'"\u0001 7"'),
    *(
        '"[1"',
        '"\\":"',
        '"ä😀"',
        r'"\/\b\f\n\r\t"',
        r'"\u0000"',
        r'"\u0002{"',
        r'"\u0003"',
        r'"{\"a\":1}"',
        r'"a,\"event\":"',
    ),
    *('"-99991"', '"0001-01-01"', r'"\\u0000"', '"' + "l" * 5000 + '"', r'"\\"', '" x "', '"2026-11-20T10:00:00Z"'),
)
MOMENTS = (
    *('"2026-11-20T10:00:00Z"', '"2026-11-20T10:00:00.123456+02:00"', '"2026-11-20t10:00:00.1234567z"'),
    *('"1969-12-31T23:59:59.999999Z"', '"0001-01-03T00:00:00Z"', '"9999-12-31T23:59:59-00:00"'),
)
DECIMALS = ("1", "12.30", "-0.05", "0.00", "1e2", "99999999999999.99", "1234567890123456789")

# Values that brokers refuse today, but that earlier brokers or other engines may have archived.
HOSTILE_NUMBERS = ("1e400", "-1E400", "1e-400", "18446744073709551616", "1" * 45, "0." + "1" * 400, "1" + "0" * 320)
HOSTILE_INTEGERS = (*HOSTILE_NUMBERS, "1e3", "5.0", "9223372036854775808")
HOSTILE_TEXTS = (r'"\ud800"', r'"x\udc00y"', r'"\ude00\ud83d"')
HOSTILE_NAMES = ("\ud800",)

Schema = dict[str, Any]


class Shape(NamedTuple):
    """A schema, and a function that makes texts of valid values."""

    schema: Schema
    value: Callable[[], str]


class Shapes:
    """Draws shapes. With `hostile`, the texts of the shapes also have content that brokers refuse, and values outside
    the schema.
    """

    def __init__(self, drawn: random.Random, *, hostile: bool = False) -> None:
        self._drawn, self._hostile = drawn, hostile
        self._numbers = NUMBERS + (HOSTILE_NUMBERS if hostile else ())
        self._texts = TEXTS + (HOSTILE_TEXTS if hostile else ())
        self._names = STRANGE_NAMES + (HOSTILE_NAMES if hostile else ())

    def event(self, *, without: str = "", restricted: bool = False) -> Shape:
        """Draw the shape of an event's payload, which has no property with the name `without`. If `restricted`, its
        schema has only what the compatibility mode `compatible` permits.
        """
        self._without, self._restricted = without, restricted
        found = self._object(0)
        if self._drawn.random() < 0.2:
            found = self._definitions(found)
        return found

    def with_another_property(self, shape: Shape) -> Shape:
        """The same shape with one more property."""
        name, more = f"x{len(shape.schema['properties'])}", self._any(1)
        schema = {**shape.schema, "properties": {**shape.schema["properties"], name: more.schema}}

        def value() -> str:
            text = shape.value()
            return f'{{"{name}":{more.value()}{"," if text != "{}" else ""}{text[1:]}'

        return Shape(schema, value)

    # Kinds of values

    def _any(self, depth: int) -> Shape:
        kind = self._drawn.random()
        if depth >= 3 or kind < 0.4:
            found = self._drawn.choice(self._scalars())
        else:
            kinds = [self._object, self._array]
            if not self._restricted:
                kinds += [self._map, self._tuple, self._one_of, self._all_of, self._patterns, self._closed_choice]
            found = self._drawn.choice(kinds)(depth + 1)
        if self._hostile and self._drawn.random() < 0.2:
            return Shape(found.schema, self._anything)
        return found

    def _scalars(self) -> Sequence[Shape]:
        choose = self._drawn.choice
        text, number = partial(choose, self._texts), partial(choose, self._numbers)
        integers = INTEGERS + (HOSTILE_INTEGERS if self._hostile else ())
        permitted = [
            Shape({"type": "string"}, text),
            Shape({"type": "integer"}, partial(choose, integers)),
            Shape({"type": "number"}, number),
            Shape({"type": "number", "multipleOf": 0.01}, partial(choose, DECIMALS)),
            Shape({"type": "number", "multipleOf": 1e-7}, partial(choose, ("1e-7", "0.0000003", "12"))),
            Shape({"type": "number", "multipleOf": 5}, partial(choose, ("5", "-10", "1e1", "15.0"))),
            Shape({"type": "number", "format": "decimal"}, number),
            Shape({"type": "boolean"}, partial(choose, ("true", "false"))),
            Shape({"type": "string", "format": "date-time"}, partial(choose, MOMENTS)),
            Shape({"type": "string", "format": "date"}, partial(choose, ('"2026-11-20"', '"0001-01-01"'))),
            Shape({"type": "string", "enum": ["x", "1.5", ""]}, partial(choose, ('"x"', '"1.5"', '""'))),
            Shape({"enum": ["x", "y"]}, partial(choose, ('"x"', '"y"'))),
            Shape({"type": "null"}, lambda: "null"),
            Shape({"type": "object"}, partial(self._object_of_anything, 0)),
            Shape({}, self._anything),
        ]
        if self._restricted:
            return permitted
        return [
            *permitted,
            Shape({"type": ["string", "null"]}, lambda: choose((choose(self._texts), "null"))),
            Shape({"type": ["integer", "string"]}, lambda: choose((choose(INTEGERS), choose(self._texts)))),
            Shape({"type": ["integer", "number"]}, number),
            Shape({"type": ["object", "array", "null"]}, lambda: choose((self._object_of_anything(0), "[]", "null"))),
            Shape({"enum": ["x", 1, 2.5, None, True, {"a": 1}, [1]]}, partial(choose, _ENUMERATED)),
            Shape({"enum": [1, 2.5]}, partial(choose, ("1", "2.5", "1.0"))),
            Shape({"type": "array"}, partial(self._array_of_anything, 0)),
            Shape({"anyOf": [{"type": "string"}, {"type": "null"}]}, lambda: choose((choose(self._texts), "null"))),
            Shape({"not": {"type": "string"}}, number),
        ]

    def _object(self, depth: int) -> Shape:
        """An object with named properties. It may have others, which may have their own schema, unless it is closed."""
        shapes = {name: self._any(depth) for name in self._some_names() if name != self._without}
        schema: Schema = {"type": "object", "properties": {name: each.schema for name, each in shapes.items()}}
        if self._drawn.random() < 0.1:
            del schema["type"]
        others, more = self._drawn.random(), None
        # The mode `compatible` closes every object.
        if self._restricted:
            pass
        elif others < 0.25:
            schema["additionalProperties"] = False
        elif others < 0.4:
            more = self._drawn.choice(self._scalars())
            schema["additionalProperties"] = more.schema
        elif others < 0.7:
            more = Shape({}, self._anything)
        return Shape(schema, partial(self._object_text, shapes, more))

    def _some_names(self) -> Sequence[str]:
        usual = self._drawn.sample(USUAL_NAMES, self._drawn.randint(1, len(USUAL_NAMES)))
        return [*usual, *self._drawn.sample(STRANGE_NAMES, self._drawn.choice((0, 0, 1, 2)))]

    def _object_text(self, shapes: Mapping[str, Shape], more: Shape | None) -> str:
        members = [(name, each.value()) for name, each in shapes.items() if self._drawn.random() < 0.8]
        if more is not None:
            taken = {*shapes, self._without}
            free = [name for name in ("z", *self._names) if name not in taken]
            members += [(name, more.value()) for name in self._drawn.sample(free, self._drawn.randrange(3))]
        if self._hostile and members and self._drawn.random() < 0.1:
            members.append(self._drawn.choice(members))
        self._drawn.shuffle(members)
        return "{" + ",".join(f"{self._string(name)}:{value}" for name, value in members) + "}"

    def _string(self, text: str) -> str:
        """A text as JSON; letters beyond ASCII may be escaped."""
        is_unicode = not any("\ud800" <= letter <= "\udfff" for letter in text)
        return json.dumps(text, ensure_ascii=not is_unicode or self._drawn.random() < 0.5)

    def _map(self, depth: int) -> Shape:
        """A schema of an object with unknown member names."""
        of = self._drawn.choice((self._scalars()[0], self._any(depth)))
        schema = {"type": "object", "additionalProperties": of.schema}
        return Shape(schema, partial(self._object_text, {}, of))

    def _array(self, depth: int) -> Shape:
        of = self._any(depth)

        def value() -> str:
            return self._array_text([of.value] * self._drawn.randint(0, 3))

        return Shape({"type": "array", "items": of.schema}, value)

    def _tuple(self, depth: int) -> Shape:
        """An array with a schema for each element."""
        each = [self._any(depth) for _ in range(self._drawn.randint(1, 3))]
        schema = {"type": "array", "items": [shape.schema for shape in each]}
        return Shape(schema, lambda: self._array_text([shape.value for shape in each]))

    def _array_text(self, values: Sequence[Callable[[], str]]) -> str:
        return "[" + ",".join(value() for value in values) + "]"

    def _one_of(self, depth: int) -> Shape:
        """A choice between two types that exclude each other."""
        first, second = self._object(depth), self._drawn.choice((self._array(depth), *self._scalars()[:3]))
        schema = {self._drawn.choice(("oneOf", "anyOf")): [{**first.schema, "type": "object"}, second.schema]}
        return Shape(schema, lambda: self._drawn.choice((first, second)).value())

    def _closed_choice(self, _: int) -> Shape:
        """A choice between two objects whose member with the same name has different types."""
        name = self._drawn.choice(USUAL_NAMES)
        choices = [
            Shape({"type": "object", "required": [name], "properties": {name: each.schema}}, each.value)
            for each in self._drawn.sample(self._scalars()[:3], 2)
        ]
        if {"integer", "number"} == {each.schema["properties"][name]["type"] for each in choices}:
            choices = choices[:1]
        schema = {"type": "object", "anyOf": [each.schema for each in choices]}
        return Shape(schema, lambda: f'{{"{name}":{self._drawn.choice(choices).value()}}}')

    def _all_of(self, depth: int) -> Shape:
        """An `allOf` of two objects that have no member in common."""
        first, second = ({name: self._any(depth)} for name in self._drawn.sample(USUAL_NAMES, 2))
        schema = {
            "allOf": [
                {"type": "object", "properties": {name: each.schema for name, each in some.items()}}
                for some in (first, second)
            ]
        }
        return Shape(schema, partial(self._object_text, first | second, None))

    def _patterns(self, depth: int) -> Shape:
        """An object with `patternProperties`, and perhaps a named property."""
        of, known = self._any(depth), self._any(depth)
        schema: Schema = {"type": "object", "patternProperties": {"^p": of.schema}, "additionalProperties": False}
        if self._drawn.random() < 0.5:
            schema["properties"] = {"a": known.schema}
        shapes = {"p1": of, "p ä": of} | ({"a": known} if "properties" in schema else {})
        return Shape(schema, partial(self._object_text, shapes, None))

    def _definitions(self, event: Shape) -> Shape:
        """Add properties whose schemas are in `definitions`; one of these refers to itself."""
        tree: Schema = {"type": "object", "properties": {"a": {"type": "integer"}, "t": {"$ref": "#/definitions/t"}}}
        schema = {
            **event.schema,
            "definitions": {"t": tree, "n": {"type": "number"}},
            "properties": {
                **event.schema["properties"],
                "tree": {"$ref": "#/definitions/t"},
                "n": {"$ref": "#/definitions/n"},
            },
        }

        def value() -> str:
            tree = "{}"
            for _ in range(self._drawn.choice((0, 1, 3, 40))):
                tree = f'{{"a":{self._drawn.choice(INTEGERS)},"t":{tree}}}'
            text = event.value()
            return f'{{"tree":{tree},"n":{self._drawn.choice(self._numbers)}{"," if text != "{}" else ""}{text[1:]}'

        return Shape(schema, value)

    # Values about which the schema says nothing

    def _anything(self, depth: int = 0) -> str:
        kind = self._drawn.random()
        if depth < 3 and kind < 0.2:
            return self._object_of_anything(depth)
        if depth < 3 and kind < 0.35:
            return self._array_of_anything(depth)
        if not depth and kind < 0.37:
            return "[" * 60 + "1" + "]" * 60
        return self._drawn.choice((self._drawn.choice(self._texts), self._drawn.choice(self._numbers), "null", "true"))

    def _object_of_anything(self, depth: int) -> str:
        if self._restricted:
            return "{}"
        return self._object_text({}, Shape({}, partial(self._anything, depth + 1)))

    def _array_of_anything(self, depth: int) -> str:
        return self._array_text([partial(self._anything, depth + 1)] * self._drawn.randrange(3))


_ENUMERATED = ('"x"', "1", "2.5", "null", "true", '{"a":1}', "[1]")
