"""Draft 04, keyword by keyword, and which cases of the JSON Schema project's own test suite agree.

The suite (json-schema-org/JSON-Schema-Test-Suite, as it came with jsonschema 4.26) was run against `compile_validator`.
SUITE holds the results, by file: the groups in it, those that agree in each case, and why the others do not. The cases
below are our own. They have the same purpose as the suite, so they notice a change that would disagree with it.
"""

from collections.abc import Iterator

import pytest

from nakadi.model.outcomes import Invalid
from nakadi.schemas.batch_check import MAX_STEPS, make_batch_check
from nakadi.schemas.document import (
    COMBINATOR_KEYWORDS,
    KEYWORDS_WITH_NAMED_SCHEMAS,
    KEYWORDS_WITH_ONE_SCHEMA,
    SchemaDocument,
)
from nakadi.schemas.validation import compile_validator

ELSEWHERE = "refers to another document, or to an id: a reference has to be a pointer into the schema itself"
CROWDED = "more than one of allOf, anyOf and oneOf in one schema, which is refused"
ECMA = r"needs \c or long names of character classes, or blanks beyond ASCII in \s: patterns are those of RE2"
LEAP = "leap seconds: there is no second 60"
RELATIVE = "a relative reference is taken for a uri"

SUITE = {
    "additionalItems": (10, 10, ""),
    "additionalProperties": (7, 7, ""),
    "allOf": (9, 8, CROWDED),
    "anyOf": (5, 5, ""),
    "default": (3, 3, ""),
    "definitions": (1, 0, ELSEWHERE),
    "dependencies": (5, 5, ""),
    "enum": (14, 14, ""),
    "format": (6, 6, ""),
    "infinite-loop-detection": (1, 1, ""),
    "items": (6, 6, ""),
    "maxItems": (1, 1, ""),
    "maxLength": (1, 1, ""),
    "maxProperties": (2, 2, ""),
    "maximum": (4, 4, ""),
    "minItems": (1, 1, ""),
    "minLength": (1, 1, ""),
    "minProperties": (1, 1, ""),
    "minimum": (4, 4, ""),
    "multipleOf": (5, 5, ""),
    "not": (6, 6, ""),
    "oneOf": (7, 7, ""),
    "pattern": (2, 2, ""),
    "patternProperties": (4, 4, ""),
    "properties": (5, 5, ""),
    "ref": (19, 13, ELSEWHERE),
    "refRemote": (8, 0, ELSEWHERE),
    "required": (4, 4, ""),
    "type": (11, 11, ""),
    "uniqueItems": (6, 6, ""),
    "optional/bignum": (7, 7, ""),
    "optional/ecmascript-regex": (20, 12, ECMA),
    "optional/float-overflow": (1, 1, ""),
    "optional/format/date-time": (1, 0, LEAP),
    "optional/format/email": (1, 1, ""),
    "optional/format/hostname": (1, 1, ""),
    "optional/format/ipv4": (1, 1, ""),
    "optional/format/ipv6": (1, 1, ""),
    "optional/format/unknown": (1, 1, ""),
    "optional/format/uri": (1, 0, RELATIVE),
    "optional/id": (1, 0, ELSEWHERE),
    "optional/non-bmp-regex": (2, 2, ""),
    "optional/zeroTerminatedFloats": (1, 1, ""),
}

# Keyword -> schema, valid values, invalid values.
CASES: dict[str, list[tuple[dict, list, list]]] = {
    "additionalItems": [
        ({"items": [{"type": "string"}], "additionalItems": False}, [[], ["a"], {"b": 1}], [["a", "b"], [1]]),
        ({"items": [{}], "additionalItems": {"type": "null"}}, [[1], [1, None, None]], [[1, None, 2]]),
        ({"items": {"type": "string"}, "additionalItems": False}, [["a", "b", "c"]], [[1]]),
        ({"additionalItems": False}, [[1, 2, 3]], []),
    ],
    "additionalProperties": [
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            [{}, {"a": 1}, [1], "b"],
            [{"b": 1}, {"a": 1, "b": 1}],
        ),
        ({"patternProperties": {"^x": {}}, "additionalProperties": False}, [{"xy": 1}], [{"yx": 1}]),
        (
            {"properties": {"a": {}}, "patternProperties": {"b": {}}, "additionalProperties": {"type": "null"}},
            [{"a": 1, "abc": 2, "d": None}],
            [{"a": 1, "abc": 2, "d": 3}],
        ),
        ({"additionalProperties": {"type": "integer"}}, [{}, {"a": 1}, 5], [{"a": "1"}]),
        ({"allOf": [{"properties": {"a": {}}}], "additionalProperties": False}, [{}], [{"a": 1}]),
        ({"additionalProperties": False, "required": ["a"]}, [5], [{}, {"a": 1}]),
    ],
    "allOf": [
        ({"allOf": [{"minimum": 2}, {"maximum": 4}]}, [2, 3, 4, "a"], [1, 5]),
        ({"allOf": [{"required": ["a"]}], "required": ["b"]}, [{"a": 1, "b": 2}], [{"a": 1}, {"b": 1}]),
        ({"allOf": [{"allOf": [{"type": "null"}]}, {}]}, [None], [1]),
    ],
    "anyOf": [
        ({"anyOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, 3, "a"], [1.5]),
        ({"anyOf": [{}, {"type": "null"}]}, [1, None], []),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, [{"a": 1}, {"b": 1}], [{}, [], 5]),
    ],
    "default": [({"properties": {"a": {"type": "integer", "default": "none"}}}, [{}, {"a": 1}], [{"a": "none"}])],
    "definitions": [({"definitions": {"a": {"type": "null"}}}, [1], [])],
    "dependencies": [
        ({"dependencies": {"a": ["b", "c"]}}, [{}, {"b": 1}, {"a": 1, "b": 1, "c": 1}, ["a"]], [{"a": 1, "b": 1}]),
        ({"dependencies": {"a": {"maxProperties": 1}}}, [{"a": 1}, {"b": 1, "c": 1}], [{"a": 1, "b": 1}]),
        ({"dependencies": {'"\n': ["'"]}}, [{'"\n': 1, "'": 1}], [{'"\n': 1}]),
    ],
    "enum": [
        (
            {"enum": [1, "a", None, [], {"b": [1]}]},
            [1, 1.0, "a", None, [], {"b": [1.0]}],
            [2, True, "b", {}, {"b": [True]}],
        ),
        ({"enum": [False, 0.5]}, [False, 0.5], [0, 0.0, None, "", []]),
        ({"enum": [[1]]}, [[1]], [[True], [1, 1], 1]),
        ({"enum": [0]}, [0, 0.0], [False, ""]),
        ({"enum": ["\0", "\ud800\n"]}, ["\0", "\ud800\n"], ["", "\n"]),
        ({"enum": []}, [], [1, None]),
    ],
    "exclusiveMaximum": [({"maximum": 2, "exclusiveMaximum": True}, [1.9, "3"], [2, 2.0, 3])],
    "exclusiveMinimum": [({"minimum": 2, "exclusiveMinimum": True}, [2.1, None], [2, 2.0, 1])],
    "format": [
        ({"format": "ipv4"}, ["127.0.0.1", 5, None, {}], ["localhost"]),
        ({"format": "of our own"}, ["anything"], []),
    ],
    "id": [
        (
            {
                "id": "http://localhost/x",
                "properties": {"a": {"$ref": "#/definitions/b"}},
                "definitions": {"b": {"type": "null"}},
            },
            [{"a": None}],
            [{"a": 1}],
        ),
        (
            {
                "properties": {"a": {"id": "http://localhost/y", "items": {"$ref": "#/definitions/b"}}},
                "definitions": {"b": {"type": "null"}},
            },
            [{"a": [None]}],
            [{"a": [1]}],
        ),
        ({"properties": {"id": {"type": "string"}}}, [{"id": "a"}], [{"id": 1}]),
    ],
    "items": [
        ({"items": {"type": "integer"}}, [[], [1, 2], {"0": "a"}, "ab"], [[1, "a"]]),
        ({"items": [{"type": "integer"}, {"type": "string"}]}, [[], [1], [1, "a"], [1, "a", None]], [["a"], [1, 2]]),
        ({"items": {"items": {"items": {"type": "null"}}}}, [[[[None]]], [[]]], [[[[1]]]]),
    ],
    "maxItems": [({"maxItems": 1}, [[], [1], "ab", {"a": 1, "b": 2}], [[1, 2]])],
    "maxLength": [({"maxLength": 2}, ["", "ab", "🐍🐍", 123], ["abc", "🐍🐍🐍"])],
    "maxProperties": [({"maxProperties": 1}, [{}, {"a": 1}, [1, 2]], [{"a": 1, "b": 2}])],
    "maximum": [({"maximum": 3}, [3, 3.0, -5, "4", True], [3.1, 4]), ({"maximum": -0.5}, [-0.5], [0])],
    "minItems": [({"minItems": 1}, [[1], "", {}], [[]])],
    "minLength": [({"minLength": 2}, ["ab", "🐍🐍", 1], ["", "a", "🐍"])],
    "minProperties": [({"minProperties": 1}, [{"a": 1}, [], ""], [{}])],
    "minimum": [({"minimum": -2}, [-2, -2.0, 0, "x", None], [-2.1, -3]), ({"minimum": 1}, [True, False], [0])],
    "multipleOf": [
        ({"multipleOf": 2}, [0, 4, -2, 4.0, "3", None], [1, 3.5]),
        ({"multipleOf": 0.01}, [0.07, 4.35, 1, 1e300], [0.075]),
        ({"multipleOf": 1e-8}, [12391239123, 1e308], [1e-9]),
        ({"multipleOf": 0.123456789}, [], [1e308, float("inf")]),
    ],
    "not": [
        ({"not": {"type": ["integer", "null"]}}, ["a", 1.5], [1, None]),
        ({"not": {"not": {"type": "null"}}}, [None], [1]),
        ({"properties": {"a": {"not": {}}}}, [{}, {"b": 1}], [{"a": 1}]),
    ],
    "oneOf": [
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, "a"], [3, 1.5]),
        ({"oneOf": [{}, {}]}, [], [1]),
        ({"oneOf": [{"type": "null"}, {"type": "string"}, {"type": "string"}]}, [None], ["a", 1]),
    ],
    "pattern": [({"pattern": "^a*$"}, ["", "aa", 5, None], ["ab", "a\n"]), ({"pattern": "b+"}, ["abc"], ["ac"])],
    "patternProperties": [
        ({"patternProperties": {"f.*o": {"type": "integer"}}}, [{}, {"foo": 1, "b": "x"}, ["foo"]], [{"foo": "1"}]),
        ({"patternProperties": {"a": {"minimum": 2}, "b$": {"maximum": 3}}}, [{"ab": 2}], [{"ab": 1}, {"ab": 4}]),
        (
            {"properties": {"a": {"minimum": 2}}, "patternProperties": {"a": {"maximum": 3}}},
            [{"a": 3}],
            [{"a": 1}, {"a": 4}],
        ),
    ],
    "properties": [
        ({"properties": {"a": {"type": "integer"}}}, [{}, {"a": 1}, {"b": "x"}, [], "a"], [{"a": "1"}]),
        (
            {"properties": {name: {"type": "integer"} for name in ("a\nb", 'a"b', "a\\b", "{a}", "__proto__", "")}},
            [dict.fromkeys(("a\nb", 'a"b', "a\\b", "{a}", "__proto__", ""), 1)],
            [{"a\nb": ""}, {'a"b': ""}, {"a\\b": ""}, {"{a}": ""}, {"__proto__": ""}, {"": ""}],
        ),
    ],
    "$ref": [
        (
            {"properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
            [{}, {"a": {"a": {}}}],
            [{"a": {"b": 1}}],
        ),
        ({"properties": {"a": {"type": "null"}, "b": {"$ref": "#/properties/a"}}}, [{"b": None}], [{"b": 1}]),
        ({"items": [{"type": "null"}, {"$ref": "#/items/0"}]}, [[None, None]], [[None, 1]]),
        (
            {
                "definitions": {
                    "a/b": {"type": "null"},
                    "a~b": {"type": "null"},
                    "a%b": {"type": "null"},
                    'a"b': {"type": "null"},
                },
                "properties": {
                    "slash": {"$ref": "#/definitions/a~1b"},
                    "tilde": {"$ref": "#/definitions/a~0b"},
                    "percent": {"$ref": "#/definitions/a%25b"},
                    "quote": {"$ref": "#/definitions/a%22b"},
                },
            },
            [{"slash": None, "tilde": None, "percent": None, "quote": None}],
            [{"slash": 1}, {"tilde": 1}, {"percent": 1}, {"quote": 1}],
        ),
        ({"items": {"$ref": "#/definitions/a", "maximum": 1}, "definitions": {"a": {}}}, [[5]], []),
        ({"properties": {"$ref": {"type": "string"}}}, [{"$ref": "a"}], [{"$ref": 1}]),
        (
            {
                "items": {"$ref": "#/definitions/a"},
                "definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"type": "null"}},
            },
            [[None]],
            [[1]],
        ),
    ],
    "required": [
        ({"required": ["a", "a"]}, [{"a": None}, [], "a"], [{}, {"b": 1}]),
        ({"required": ["a\nb", 'a"b', "__proto__"]}, [{"a\nb": 1, 'a"b': 1, "__proto__": 1}], [{"a\nb": 1, 'a"b': 1}]),
        ({"required": []}, [{}], []),
    ],
    "title": [({"title": 'a"\n', "description": "'''", "$schema": "http://json-schema.org/draft-04/schema"}, [1], [])],
    "type": [
        ({"type": "integer"}, [1, -1], [1.0, 1.5, True, "1", None, [], {}]),
        ({"type": "number"}, [1, 1.5], [True, "1", None]),
        ({"type": "string"}, ["", "1"], [1, None, [], {}]),
        ({"type": "object"}, [{}], [[], None, "{}"]),
        ({"type": "array"}, [[]], [{}, None, "[]"]),
        ({"type": "boolean"}, [True, False], [0, 1, "true", None]),
        ({"type": "null"}, [None], [0, False, "", [], {}]),
        ({"type": ["array", "null"]}, [[], None], [{}, 0]),
        ({"type": ["string"]}, ["a"], [1]),
        ({"type": []}, [], [1, None]),
    ],
    "uniqueItems": [
        (
            {"uniqueItems": True},
            [[], [1], [1, 2], [1, True], [0, False], ["1", 1], [[1], [True]], [{"a": 1}, {"a": True}], [[], {}], "aa"],
            [[1, 1], [1, 1.0], [[1], [1.0]], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [None, None], [[[1]], [[1]]]],
        ),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"items": [{"type": "boolean"}], "uniqueItems": True}, [[True, 1]], [[True, True]]),
    ],
}


def list_cases(valid: bool) -> Iterator[tuple[str, dict, object]]:
    for keyword, cases in CASES.items():
        for schema, good, bad in cases:
            for value in good if valid else bad:
                yield keyword, schema, value


@pytest.mark.parametrize(("_", "schema", "value"), list(list_cases(valid=True)))
def test_values_that_draft_04_accepts(_, schema, value):
    """The validator accepts every value that draft 04 accepts, keyword by keyword. (P56, R162)"""
    assert compile_validator(schema).accepts(value)


@pytest.mark.parametrize(("_", "schema", "value"), list(list_cases(valid=False)))
def test_values_that_draft_04_refuses(_, schema, value):
    """The validator refuses every value that draft 04 refuses, keyword by keyword, with a reason. (P56, R162)"""
    validator = compile_validator(schema)

    assert not validator.accepts(value)
    assert validator.explain(value).startswith("#")


@pytest.mark.parametrize("valid", [True, False])
def test_all_events_at_once(valid):
    """Checking all events of a batch together gives the same results, keyword by keyword. (P56, R162)"""
    for _, schema, value in list_cases(valid):
        around, event = {"type": "object", "properties": {"value": schema}}, {"value": value}
        if "$ref" in str(schema):  # references start at the root
            around, event = schema, value
        if isinstance(event, dict):
            document, parts = SchemaDocument.from_root(around), compile_validator(around).compile_parts
            check = make_batch_check(document, parts, has_metadata=False)
            assert check.accepts([event], [MAX_STEPS]) is valid, (schema, value)


def test_every_keyword():
    """The table contains every keyword that restricts values. (R162)"""
    judging = {
        *KEYWORDS_WITH_NAMED_SCHEMAS,
        *COMBINATOR_KEYWORDS,
        *KEYWORDS_WITH_ONE_SCHEMA,
        *(keyword for keyword in CASES if keyword.startswith(("min", "max"))),
    }

    assert (
        judging | {"$ref", "enum", "format", "multipleOf", "pattern", "required", "type", "uniqueItems"} <= CASES.keys()
    )


def test_disagreements_with_the_suite_have_reasons():
    """If the official suite does not agree in all groups of a file, the table gives the reason. (P56)"""
    for groups, agreeing, reason in SUITE.values():
        assert (agreeing < groups) == bool(reason)
    assert sum(groups for groups, _, _ in SUITE.values()) == 198
    assert sum(agreeing for _, agreeing, _ in SUITE.values()) == 171


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://json-schema.org/draft-04/schema#"},
        {"properties": {"a": {"$ref": "item.json"}}},
        {"properties": {"a": {"$ref": "#name"}}, "definitions": {"a": {"id": "#name"}}},
        {"allOf": [{}], "anyOf": [{}]},
        {"pattern": r"^\cC$"},
        {"pattern": r"\p{Letter}"},
    ],
)
def test_unsupported_keywords_are_refused(schema):
    """Keywords that the broker does not support cause the schema to be refused; they are not ignored. (R153, R154,
    R155)"""
    with pytest.raises(Invalid):
        compile_validator(schema)
