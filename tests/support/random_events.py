"""Draws random schemas, values that mostly follow them, and texts of these values as hostile clients may write them.
One `random.Random` decides everything, so a seed determines a whole run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

USUAL_NAMES = ("a", "b", "n", "note", "data", "é", "a:b")
NAMES = (*USUAL_NAMES, "metadata", 'y"metadata', "\u2028", "", "x" * 120, "\\u006d", "</")
TEXTS = (
    *("", "a", "b", "o-1", "aaaa", "é", "\u2028", "\U0001f600 b", "</", '":{', "metadata", '"metadata":{', 'q"\\', ":"),
    *(',"metadata":{"eid":"', "2026-11-21T12:00:00Z", "x" * 200, "\x7f", "\t", "[{", "}]", "\\u003a", "0" * 20),
)
NUMBERS = ("0", "1", "7", "-3", "2.5", "1.50", "1E2", "-0", "-0.0", "1e-400", "9223372036854775807", "0.1", "1e30")
PATTERNS = (("^o-[0-9]+$", "o-12"), ("a", "bab"), ("^[^é]*$", "e"), ("", "x"))
FORMATS = (
    *(("date-time", "2026-11-21T12:00:00Z"), ("date-time", "2024-02-29T12:00:00+01:00"), ("email", "a@example.org")),
    *(("ipv4", "10.0.0.1"), ("uri", "https://example.org/a"), ("hostname", "example.org"), ("unknown", "x")),
)


class SpelledNumber(str):
    """The text of a number."""

    __slots__ = ()


class SchemaWithValues(NamedTuple):
    """A schema, and a function that makes values that it accepts, unless the surrounding schema requires more."""

    schema: dict[str, Any]
    make: Callable[[], Any]


class RandomSchemas:
    """Makes small schemas with all keywords that affect validation. Members get their names from `names`."""

    def __init__(self, draw: Random, names: Sequence[str] = NAMES) -> None:
        self._draw = draw
        self._names = names
        self._definitions: dict[str, Any] = {}

    def root(self) -> SchemaWithValues:
        """Make the schema of an event type: mostly an object with a few properties."""
        self._definitions = {}
        part = self._object(3, properties=self._draw.randint(1, 4))
        schema = dict(part.schema)
        if self._draw.random() < 0.1:
            del schema["type"]
        if self._draw.random() < 0.1:
            keyword, names = self._draw.choice(("anyOf", "oneOf")), self._draw.sample(self._names, 2)
            schema[keyword] = [{"required": [name]} for name in names]
        if self._draw.random() < 0.05:
            schema = {"allOf": [schema, {"minProperties": 1}]}
        if self._definitions:
            schema["definitions"] = self._definitions
        return SchemaWithValues(schema, part.make)

    def anything(self, levels: int) -> Any:
        kinds = (self._text, self._number, self._constant, *((self._list, self._members) if levels else ()))
        kind = self._draw.choice(kinds)
        return kind(levels) if kind in (self._list, self._members) else kind()

    def part(self, levels: int) -> SchemaWithValues:
        simple = (self._string, self._enum, self._mixed_enum, self._numeric, self._plain_type, self._several_types)
        nested = (self._object, self._array, self._combination, self._reference, self._any_part, self._recursion)
        kind = self._draw.choice((*simple, *nested) if levels else simple)
        return kind(levels)

    # Values

    def _text(self) -> str:
        return self._draw.choice(TEXTS)

    def _number(self) -> SpelledNumber:
        return SpelledNumber(self._draw.choice(NUMBERS))

    def _constant(self) -> bool | None:
        return self._draw.choice((True, False, None))

    def _list(self, levels: int) -> list[Any]:
        return [self.anything(levels - 1) for _ in range(self._draw.randint(0, 3))]

    def _members(self, levels: int) -> dict[str, Any]:
        return {self._draw.choice(self._names): self.anything(levels - 1) for _ in range(self._draw.randint(0, 3))}

    # Schemas of one value

    def _string(self, _: int) -> SchemaWithValues:
        match self._draw.randrange(5):
            case 0:
                pattern, text = self._draw.choice(PATTERNS)
                return SchemaWithValues({"type": "string", "pattern": pattern}, lambda: text)
            case 1:
                form, text = self._draw.choice(FORMATS)
                return SchemaWithValues({"type": "string", "format": form}, lambda: text)
            case 2:
                return SchemaWithValues(
                    {"type": "string", "minLength": 1, "maxLength": 4}, lambda: self._draw.choice("abé")
                )
            case _:
                return SchemaWithValues({"type": "string"}, self._text)

    def _enum(self, _: int) -> SchemaWithValues:
        texts = list(dict.fromkeys(self._draw.choices(TEXTS, k=3)))
        return SchemaWithValues({"type": "string", "enum": texts}, lambda: self._draw.choice(texts))

    def _mixed_enum(self, _: int) -> SchemaWithValues:
        values: list[Any] = [*self._draw.sample(("a", "é", None, True, False, 0, 1, 2.5, [1], {"a": 1}), 3)]
        return SchemaWithValues({"enum": values}, lambda: self._draw.choice(values))

    def _numeric(self, _: int) -> SchemaWithValues:
        kind = self._draw.choice(("integer", "number"))
        match self._draw.randrange(4):
            case 0:
                return SchemaWithValues(
                    {"type": kind, "minimum": 0, "maximum": 100}, lambda: self._draw.randint(0, 100)
                )
            case 1:
                return SchemaWithValues({"type": kind, "multipleOf": 3}, lambda: 3 * self._draw.randint(-3, 3))
            case 2:
                schema = {"type": "number", "multipleOf": 0.01, "minimum": 0, "exclusiveMinimum": True}
                return SchemaWithValues(schema, lambda: SpelledNumber(f"{self._draw.randint(1, 999) / 100}"))
            case _:
                spelled = ("0", "-0", "7", "9223372036854775807", "-9223372036854775808")
                return SchemaWithValues({"type": kind}, lambda: SpelledNumber(self._draw.choice(spelled)))

    def _plain_type(self, _: int) -> SchemaWithValues:
        if self._draw.random() < 0.5:
            return SchemaWithValues({"type": "boolean"}, lambda: self._draw.random() < 0.5)
        return SchemaWithValues({"type": "null"}, lambda: None)

    def _several_types(self, levels: int) -> SchemaWithValues:
        kinds = self._draw.sample(("string", "integer", "boolean", "null", "array", "object"), 2)
        made: Mapping[str, Callable[[], Any]] = {
            "string": self._text,
            "integer": lambda: self._draw.randint(-5, 5),
            "boolean": lambda: True,
            "null": lambda: None,
            "array": lambda: self._list(levels),
            "object": lambda: self._members(levels),
        }

        def make() -> Any:
            return made[self._draw.choice(kinds)]()

        return SchemaWithValues({"type": kinds}, make)

    def _any_part(self, levels: int) -> SchemaWithValues:
        return SchemaWithValues({}, lambda: self.anything(levels))

    # Schemas that contain other schemas

    def _array(self, levels: int) -> SchemaWithValues:
        items = self.part(levels - 1)
        schema: dict[str, Any] = {"type": "array", "items": items.schema}
        most = 4
        if self._draw.random() < 0.2:
            schema["uniqueItems"] = True
            most = 1
        if self._draw.random() < 0.2:
            schema |= {"minItems": 1, "maxItems": 4}
        if self._draw.random() < 0.1:
            second = self.part(levels - 1)
            return SchemaWithValues(
                {**schema, "items": [items.schema, second.schema]}, lambda: [items.make(), second.make()][:most]
            )
        return SchemaWithValues(schema, lambda: [items.make() for _ in range(self._draw.randint(1, most))])

    def _object(self, levels: int, properties: int = 2) -> SchemaWithValues:
        parts = {name: self.part(levels - 1) for name in self._draw.sample(self._names, properties)}
        required = [name for name in parts if self._draw.random() < 0.4]
        schema: dict[str, Any] = {"type": "object", "properties": {name: each.schema for name, each in parts.items()}}
        if required:
            schema["required"] = required
        further: Callable[[], dict[str, Any]] = dict
        match self._draw.randrange(9):
            case 0:
                schema["additionalProperties"] = False
            case 1:
                schema["additionalProperties"] = {"type": "string"}
                further = lambda: {"more": self._text()}  # noqa: E731
            case 2:
                schema["patternProperties"] = {"^x-": {"type": "string"}}
                further = lambda: {"x-a": self._text()}  # noqa: E731
            case 3:
                schema |= {"minProperties": 1, "maxProperties": 4}
                further = lambda: {"more": 1}  # noqa: E731
            case 4:
                further = lambda: self._members(1)  # noqa: E731
            case 5:
                schema["dependencies"] = {self._draw.choice(self._names): [self._draw.choice(self._names)]}

        def make() -> dict[str, Any]:
            kept = {name: each.make() for name, each in parts.items() if name in required or self._draw.random() < 0.7}
            return {**(further() if self._draw.random() < 0.4 else {}), **kept}

        return SchemaWithValues(schema, make)

    def _combination(self, levels: int) -> SchemaWithValues:
        first, second = self.part(levels - 1), self.part(levels - 1)
        keyword = self._draw.choice(("anyOf", "oneOf", "allOf", "not"))
        match keyword:
            case "allOf":
                return SchemaWithValues({"allOf": [first.schema, {}]}, first.make)
            case "not":
                return SchemaWithValues(
                    {"not": {"type": "object", "required": ["never"]}}, lambda: self.anything(levels)
                )
            case _:
                return SchemaWithValues(
                    {keyword: [first.schema, second.schema]}, self._draw.choice((first, second)).make
                )

    def _reference(self, levels: int) -> SchemaWithValues:
        target = self.part(levels - 1)
        name = f"d{len(self._definitions)}"
        self._definitions[name] = target.schema
        return SchemaWithValues({"$ref": f"#/definitions/{name}"}, target.make)

    def _recursion(self, _: int) -> SchemaWithValues:
        self._definitions["node"] = {
            "type": "object",
            "properties": {
                "metadata": {"type": "object", "properties": {"eid": {"type": "string"}}},
                "of": {"type": "array", "items": {"$ref": "#/definitions/node"}},
            },
        }

        def tree(levels: int) -> dict[str, Any]:
            node: dict[str, Any] = {"of": [tree(levels - 1) for _ in range(self._draw.randint(0, 2))]} if levels else {}
            return {**node, **({"metadata": {"eid": self._text()}} if self._draw.random() < 0.3 else {})}

        return SchemaWithValues({"$ref": "#/definitions/node"}, lambda: tree(3))


class Spelling(NamedTuple):
    """How to write a JSON text: the share of escaped characters, and the blanks between tokens."""

    escapes: float
    blanks: str


SPELLINGS = (
    *(
        Spelling(0, ""),
        Spelling(0, ""),
        Spelling(0, " "),
        Spelling(0, "\n\t"),
        Spelling(0.1, ""),
        Spelling(0.3, " \r\n"),
    ),
)


def spell(draw: Random, value: Any, spelling: Spelling) -> str:
    """Write a value as JSON, with members in their order."""
    blank = spelling.blanks
    match value:
        case SpelledNumber():
            return value
        case str():
            return f'"{"".join(_spelled_character(draw, each, spelling.escapes) for each in value)}"'
        case dict():
            members = (
                f"{spell(draw, name, spelling)}{blank}:{blank}{spell(draw, each, spelling)}"
                for name, each in value.items()
            )
            return f"{{{blank}{f',{blank}'.join(members)}{blank}}}"
        case list():
            return f"[{blank}{f'{blank},'.join(spell(draw, each, spelling) for each in value)}{blank}]"
        case _:
            return json.dumps(value)


def _spelled_character(draw: Random, character: str, escapes: float) -> str:
    if character == "/" and draw.random() < escapes:
        return "\\/"
    if draw.random() < escapes:
        units = character.encode("utf-16-be")
        return "".join(f"\\u{int.from_bytes(units[at : at + 2]):04x}" for at in range(0, len(units), 2))
    return json.dumps(character, ensure_ascii=False)[1:-1]


def _insert(text: str) -> Callable[[Random, str], str]:
    def insert(draw: Random, body: str) -> str:
        at = draw.randint(0, len(body))
        return body[:at] + text + body[at:]

    return insert


def _replace_once(old: str, *new: str) -> Callable[[Random, str], str]:
    """A change that replaces one occurrence of `old`, chosen at random, by one of `new`."""

    def replace(draw: Random, body: str) -> str:
        places = body.split(old)
        if len(places) == 1:
            return body
        at = draw.randrange(1, len(places))
        return old.join(places[:at]) + draw.choice(new) + old.join(places[at:])

    return replace


HOSTILE_CHANGES: Sequence[Callable[[Random, str], str]] = (
    _replace_once("{", '{"a":1,', '{"a":1,"a":2,', '{"\\u0061":1,', '{"metadata":{},', '{"metadat\\u0061":{},', "{,"),
    _replace_once(":", ":1e400,", ":" + "9" * 400 + ".5", ":18446744073709551615", ": -0", "::", ":NaN", ":01", ":-"),
    _replace_once(":", ":9223372036854775808,", ":" + "[" * 150 + "]" * 150, ":" + "[" * 260 + "]" * 260),
    _replace_once('"', '"\\ud800', '"\\udc00\\ud800', '"\\ud83d\\ude00', '"\\x', "'", '"\x00', '"\x1f', '"\\u003A"'),
    _replace_once("},", "}", "},,", "} ", "}\u00a0,", "}\x0b,", "},1,"),
    _replace_once("}", ",}", "}}", "]", ""),
    *map(_insert, ("\ufeff", " ", ",", '"', "0", "\\", "/**/", "\u2028", "\x85", "}", "[", "-", "e")),
    lambda _, body: "\ufeff" + body,
    lambda draw, body: body[: draw.randint(0, len(body))],
    lambda _, body: body[1:-1],
    lambda _, body: body + body,
)
"""Changes to the text of a batch. The result may be strict JSON or not, and may have other values."""
