"""The rules by which a schema may replace the one before it."""

import json
from datetime import timedelta

import pytest

from nakadi.model.event_type import ChangeLevel, CompatibilityMode, Version
from nakadi.model.outcomes import IncompatibleSchema, Invalid
from nakadi.schemas.changes import ChangeKind, find_schema_changes
from nakadi.schemas.evolution import level_of_change, next_schema
from nakadi.schemas.submission import check_restricted_language
from nakadi.schemas.values import MAX_MESSAGE_CHARACTERS
from tests.support.builders import A_MOMENT, a_schema, an_event_type

FORWARD, COMPATIBLE, NONE = CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE, CompatibilityMode.NONE
LATER = A_MOMENT + timedelta(days=1)


def text_of(schema) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def evolve(old, new, mode=FORWARD, new_mode=None, version="1.2.3"):
    current = an_event_type(schema=a_schema(text_of(old), version=Version.parse(version)), compatibility_mode=mode)
    return next_schema(current, text_of(new), new_mode or mode, LATER)


def refusal(old, new, mode=FORWARD, new_mode=None) -> IncompatibleSchema:
    with pytest.raises(IncompatibleSchema) as refused:
        evolve(old, new, mode, new_mode)
    return refused.value


PATCH, MINOR, MAJOR, REFUSED, RESTRICTED = "1.2.4", "1.3.0", "2.0.0", "refused", "restricted"

TYPE_CHANGED, TYPE_NARROWED, ENUM, SUB = "TYPE_CHANGED", "TYPE_NARROWED", "ENUM_ARRAY_CHANGED", "SUB_SCHEMA_CHANGED"
ATTRIBUTE, ADDED, REMOVED = "ATTRIBUTE_VALUE_CHANGED", "PROPERTIES_ADDED", "SCHEMA_REMOVED"
EXTENDED, REQUIRED = "REQUIRED_ARRAY_EXTENDED", "REQUIRED_ARRAY_CHANGED"
FLIPPED, NARROWED = "ADDITIONAL_PROPERTIES_CHANGED", "ADDITIONAL_PROPERTIES_NARROWED"

S, INT, N, OBJ, ARR = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "object"}, {"type": "array"}
A = {"type": "object", "properties": {"a": S}}
AB = {"type": "object", "properties": {"a": S, "b": S}}
CHOICE = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}


def schema_with_definitions(reference, **definitions):
    return {"properties": {"p": {"$ref": f"#/definitions/{reference}"}}, "definitions": definitions}


VECTORS = [
    (INT, N, [], PATCH, PATCH),
    (N, INT, [], PATCH, PATCH),
    (S, INT, [f"{TYPE_CHANGED} #/"], REFUSED, REFUSED),
    (S, S | {"pattern": "a"}, [], PATCH, PATCH),
    (S, S | {"format": "email"}, [], PATCH, PATCH),
    (S, S | {"default": "a"}, [], PATCH, PATCH),
    (S, S | {"x-foo": 1}, [], PATCH, RESTRICTED),
    (S | {"pattern": "a"}, S | {"pattern": "b"}, [f"{ATTRIBUTE} #/pattern"], REFUSED, REFUSED),
    (S, S | {"minLength": 1}, [f"{ATTRIBUTE} #/minLength"], REFUSED, REFUSED),
    (
        S | {"minLength": 1, "maxLength": 5},
        S | {"minLength": 2, "maxLength": 6},
        [f"{ATTRIBUTE} #/maxLength"],
        REFUSED,
        REFUSED,
    ),
    (S, S | {"enum": ["a"]}, [f"{TYPE_CHANGED} #/"], REFUSED, REFUSED),
    (S | {"enum": ["a"]}, S, [f"{TYPE_CHANGED} #/"], REFUSED, REFUSED),
    ({"enum": ["a", "b"]}, {"enum": ["b", "a"]}, [], PATCH, PATCH),
    (S | {"enum": ["a"]}, INT | {"enum": ["a"]}, [], PATCH, PATCH),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, [f"{ENUM} #/enum"], REFUSED, REFUSED),
    (
        {"title": "a", "description": "a"},
        {"title": "b", "description": "b"},
        ["TITLE_CHANGED #/", "DESCRIPTION_CHANGED #/"],
        PATCH,
        PATCH,
    ),
    ({"id": "a"}, {"id": "b"}, ["ID_CHANGED #/"], REFUSED, REFUSED),
    (
        {"type": ["string", "null"]},
        {"type": ["null", "string"]},
        [f"{TYPE_CHANGED} #/anyOf/0", f"{TYPE_CHANGED} #/anyOf/1"],
        REFUSED,
        REFUSED,
    ),
    (S, {"type": ["string", "null"]}, [f"{TYPE_CHANGED} #/"], REFUSED, REFUSED),
    ({"type": ["string"]}, {"type": ["string", "null"]}, [f"{SUB} #/"], REFUSED, REFUSED),
    ({}, S, [f"{TYPE_NARROWED} #/"], MINOR, REFUSED),
    ({}, ARR, [f"{TYPE_NARROWED} #/"], MINOR, REFUSED),
    ({}, {"enum": [1]}, [f"{TYPE_NARROWED} #/"], MINOR, REFUSED),
    (
        {"definitions": {"d": S}},
        {"$ref": "#/definitions/d", "definitions": {"d": S}},
        [f"{TYPE_NARROWED} #/"],
        MINOR,
        REFUSED,
    ),
    ({}, OBJ, [], PATCH, PATCH),
    ({}, A, [f"{ADDED} #/properties"], MINOR, MINOR),
    ({}, A | {"required": ["a"]}, [f"{ADDED} #/properties", f"{EXTENDED} #/required"], MINOR, REFUSED),
    (OBJ, {}, [f"{TYPE_CHANGED} #/"], REFUSED, REFUSED),
    ({"properties": {"a": S}}, {"properties": {"a": {}}}, [f"{TYPE_CHANGED} #/properties/a"], REFUSED, REFUSED),
    ({"properties": {"a": {}}}, {"properties": {"a": S}}, [f"{TYPE_NARROWED} #/properties/a"], MINOR, REFUSED),
    (A, AB, [f"{ADDED} #/properties"], MINOR, MINOR),
    ({"properties": {"x": A}}, {"properties": {"x": AB}}, [f"{ADDED} #/properties/x/properties"], MINOR, MINOR),
    (ARR | {"items": A}, ARR | {"items": AB}, [f"{ADDED} #/items/properties"], MINOR, MINOR),
    (A, {"type": "object", "properties": {"b": S}}, ["PROPERTY_REMOVED #/properties/a"], REFUSED, REFUSED),
    (A, A | {"required": ["a"]}, [f"{EXTENDED} #/required"], MINOR, REFUSED),
    (A | {"required": ["a"]}, A, [f"{REQUIRED} #/required"], REFUSED, REFUSED),
    (AB | {"required": ["a"]}, AB | {"required": ["b"]}, [f"{REQUIRED} #/required"], REFUSED, REFUSED),
    (OBJ, OBJ | {"additionalProperties": False}, [f"{FLIPPED} #/additionalProperties"], REFUSED, REFUSED),
    (
        OBJ | {"additionalProperties": False},
        OBJ | {"additionalProperties": True},
        [f"{FLIPPED} #/additionalProperties"],
        REFUSED,
        REFUSED,
    ),
    (OBJ, OBJ | {"additionalProperties": True}, [], PATCH, PATCH),
    (OBJ, OBJ | {"additionalProperties": S}, [f"{NARROWED} #/additionalProperties"], MINOR, REFUSED),
    (
        OBJ | {"additionalProperties": True},
        OBJ | {"additionalProperties": S},
        [f"{NARROWED} #/additionalProperties"],
        MINOR,
        REFUSED,
    ),
    (OBJ | {"additionalProperties": S}, OBJ, [f"{REMOVED} #/additionalProperties"], REFUSED, REFUSED),
    (
        OBJ | {"additionalProperties": S},
        OBJ | {"additionalProperties": True},
        [f"{REMOVED} #/additionalProperties"],
        REFUSED,
        REFUSED,
    ),
    (
        OBJ | {"additionalProperties": {}},
        OBJ | {"additionalProperties": S},
        [f"{TYPE_NARROWED} #/additionalProperties"],
        MINOR,
        REFUSED,
    ),
    (OBJ, OBJ | {"patternProperties": {"a": S}}, [], PATCH, PATCH),
    (OBJ | {"patternProperties": {"a": S}}, OBJ | {"patternProperties": {"a": INT}}, [], PATCH, PATCH),
    (OBJ, OBJ | {"dependencies": {"a": ["b"]}}, [], PATCH, None),
    (OBJ | {"dependencies": {"a": ["b"]}}, OBJ, ["DEPENDENCY_ARRAY_CHANGED #/dependencies/a"], REFUSED, None),
    (
        OBJ | {"dependencies": {"a": ["b"]}},
        OBJ | {"dependencies": {"a": ["c"]}},
        ["DEPENDENCY_ARRAY_CHANGED #/dependencies/a"],
        REFUSED,
        None,
    ),
    (OBJ, OBJ | {"dependencies": {"a": A}}, ["DEPENDENCY_SCHEMA_CHANGED #/dependencies"], REFUSED, REFUSED),
    (OBJ | {"dependencies": {"a": A}}, OBJ, ["DEPENDENCY_SCHEMA_CHANGED #/dependencies"], REFUSED, REFUSED),
    (ARR, ARR | {"items": S}, [f"{REMOVED} #/items"], REFUSED, REFUSED),
    (ARR | {"items": S}, ARR, [f"{REMOVED} #/items"], REFUSED, REFUSED),
    (ARR | {"items": {}}, ARR | {"items": S}, [f"{TYPE_NARROWED} #/items"], MINOR, REFUSED),
    (ARR, ARR | {"minItems": 1}, [f"{ATTRIBUTE} #/minItems"], REFUSED, REFUSED),
    (ARR, ARR | {"uniqueItems": True}, [f"{ATTRIBUTE} #/uniqueItems"], REFUSED, REFUSED),
    (ARR, ARR | {"additionalItems": False}, ["ADDITIONAL_ITEMS_CHANGED #/additionalItems"], REFUSED, REFUSED),
    (ARR | {"items": S}, ARR | {"items": S, "additionalItems": False}, [], PATCH, RESTRICTED),
    ({"anyOf": [S]}, {"anyOf": [S, INT]}, [f"{SUB} #/"], REFUSED, REFUSED),
    (
        {"anyOf": [S, INT]},
        {"anyOf": [INT, S]},
        [f"{TYPE_CHANGED} #/anyOf/0", f"{TYPE_CHANGED} #/anyOf/1"],
        REFUSED,
        REFUSED,
    ),
    ({"anyOf": [S, INT]}, {"oneOf": [S, INT]}, ["COMPOSITION_METHOD_CHANGED #/"], REFUSED, REFUSED),
    (A, A | CHOICE, [f"{TYPE_CHANGED} #/"], REFUSED, REFUSED),
    (A | CHOICE, AB | CHOICE, [f"{ADDED} #/allOf/0/properties"], MINOR, MINOR),
    (schema_with_definitions("d", d=S), schema_with_definitions("e", d=INT, e=S), [], PATCH, PATCH),
    (OBJ | {"definitions": {"d": S}}, OBJ | {"definitions": {"d": INT}}, [], PATCH, PATCH),
    (
        schema_with_definitions("d", d=S),
        {"properties": {"p": {"$ref": "#/definitions/d", "id": "i", "title": "t"}}, "definitions": {"d": S}},
        [],
        PATCH,
        PATCH,
    ),
    ('{"type": "object"}', '{"type":"object"}', [], PATCH, PATCH),
    ('{"type":"object"}', '{"type":"object"}', [], "1.2.3", "1.2.3"),
]

ALL_LEVELS = {"DESCRIPTION_CHANGED": PATCH, "TITLE_CHANGED": PATCH}
ALL_LEVELS |= dict.fromkeys((ADDED, TYPE_NARROWED, EXTENDED, NARROWED), MINOR)


@pytest.mark.parametrize(("old", "new", "changes"), [row[:3] for row in VECTORS])
def test_measured_changes(old, new, changes):
    """The changes that were measured with the original are found, in order. (R188, R195, R196, R201, R202, R205)"""
    found = find_schema_changes(json.loads(text_of(old)), json.loads(text_of(new)))
    assert [f"{change.kind} {change.path.text}" for change in found] == changes


def version_or_refusal(old, new, mode) -> str:
    try:
        return str(evolve(old, new, mode).version)
    except IncompatibleSchema:
        return REFUSED


@pytest.mark.parametrize(("old", "new", "forward"), [(old, new, forward) for old, new, _, forward, _ in VECTORS])
def test_measured_versions_in_mode_forward(old, new, forward):
    """The mode `forward` refuses major changes and numbers the others by their level. (R189, R190, R192)"""
    assert version_or_refusal(old, new, FORWARD) == forward


@pytest.mark.parametrize(
    ("old", "new", "compatible"),
    # Lists of names are never compared in this mode.
    [(old, new, compatible) for old, new, _, _, compatible in VECTORS if compatible],
)
def test_measured_versions_in_mode_compatible(old, new, compatible):
    """The mode `compatible` also refuses narrowing, and any keyword outside its language. (R163, R189, R190, R192)"""
    if compatible is RESTRICTED:
        with pytest.raises(Invalid, match="Invalid schema found in"):
            check_restricted_language(new)
    else:
        assert version_or_refusal(old, new, COMPATIBLE) == compatible


@pytest.mark.parametrize(("old", "new", "changes", "forward"), [row[:4] for row in VECTORS])
def test_measured_versions_in_mode_none(old, new, changes, forward):
    """The mode `none` accepts everything and numbers it by the levels of `forward`. (R189, R190, R192)"""
    levels = [ALL_LEVELS.get(each.split()[0], MAJOR) for each in changes]
    expected = max(levels) if levels else forward
    assert version_or_refusal(old, new, NONE) == expected


def test_no_change_keeps_everything():
    """Submitting the same text again returns the same schema: version, time and text. (R189, R190)"""
    current = an_event_type(schema=a_schema('{"a":1}', version=Version(3, 1, 4)))
    assert next_schema(current, '{"a":1}', FORWARD, LATER) is current.schema


def test_a_new_version_is_of_now():
    """A new version has exactly the submitted text, and the time of its creation. (R190)"""
    schema = evolve({}, '{ "title":\t"x" }')
    assert (schema.text, schema.version, schema.created_at) == ('{ "title":\t"x" }', Version(1, 2, 4), LATER)


def test_the_highest_level_counts():
    """Of many changes, the one with the highest level decides. (R189, R190)"""
    old = {"title": "a", "properties": {"a": S, "c": S}}
    minor = {"title": "b", "properties": {"a": S, "c": S, "d": S}}
    major = {"title": "b", "properties": {"a": INT, "c": S, "d": S}}
    assert str(evolve(old, minor, NONE).version) == "1.3.0"
    assert str(evolve(old, major, NONE).version) == "2.0.0"


TEXTS = {
    "ID_CHANGED": "null",
    "TYPE_NARROWED": "schema types cannot be narrowed",
    "REQUIRED_ARRAY_EXTENDED": "required array changed",
    "ADDITIONAL_PROPERTIES_NARROWED": "change not allowed",
    "SCHEMA_REMOVED": "change not allowed",
    "TYPE_CHANGED": "schema types must be the same",
    "NUMBER_OF_ITEMS_CHANGED": "the number of schema items cannot be changed",
    "PROPERTY_REMOVED": "schema properties cannot be removed",
    "DEPENDENCY_ARRAY_CHANGED": "schema dependencies array cannot be changed",
    "DEPENDENCY_SCHEMA_CHANGED": "schema dependencies cannot be changed",
    "COMPOSITION_METHOD_CHANGED": "schema composition method changed",
    "ATTRIBUTE_VALUE_CHANGED": "change to attribute value not allowed",
    "ENUM_ARRAY_CHANGED": "enum array changed",
    "SUB_SCHEMA_CHANGED": "sub schema changed",
    "REQUIRED_ARRAY_CHANGED": "required array changed",
    "ADDITIONAL_PROPERTIES_CHANGED": "change not allowed",
    "ADDITIONAL_ITEMS_CHANGED": "change not allowed",
}

EXAMPLES = [
    *VECTORS,
    (ARR | {"items": [{}]}, ARR | {"items": [{}, {}]}, ["NUMBER_OF_ITEMS_CHANGED #/"], REFUSED, REFUSED),
]


@pytest.mark.parametrize("kind", TEXTS)
def test_every_refusal_has_its_text(kind):
    """Each kind of forbidden change is reported by its path and a fixed text. (R192)"""
    old, new, changes = next(each[:3] for each in EXAMPLES if any(kind == change.split()[0] for change in each[2]))
    path = next(change.split()[1] for change in changes if change.split()[0] == kind)
    mode = COMPATIBLE if kind in (TYPE_NARROWED, EXTENDED, NARROWED) else FORWARD
    assert f"{path}: {TEXTS[kind]}" in refusal(old, new, mode).detail


def test_every_kind_of_change_is_a_refusal_or_harmless():
    """Three kinds of change are never refused; all others can be. (R192, R193)"""
    never = {kind for kind in ChangeKind if level_of_change(kind, COMPATIBLE) < ChangeLevel.MAJOR}
    assert {kind.value for kind in never} == {"DESCRIPTION_CHANGED", "TITLE_CHANGED", "PROPERTIES_ADDED"}
    assert {kind.value for kind in ChangeKind} == {kind.value for kind in never} | TEXTS.keys()


def test_a_refusal_lists_the_forbidden_changes_only():
    """Only forbidden changes are reported, in the order in which they were found. (R192)"""
    old = {"title": "a", "properties": {"a": S, "b": S, "c": {"required": []}}}
    new = {"title": "b", "properties": {"b": INT, "c": {"required": ["x"]}, "d": {}, "e": {}, "f": {}}}

    assert refusal(old, new).detail == (
        "Invalid schema: #/properties/a: schema properties cannot be removed, "
        "#/properties/b: schema types must be the same"
    )


def test_a_refusal_explains_itself_to_people():
    """In addition to the text for machines, a refusal names the change, the reason, and the remedy. (R192)"""
    reason = refusal(AB, A).reasons[0]

    assert (reason.rule, reason.path) == ("PROPERTY_REMOVED", "#/properties/b")
    assert reason.explanation == (
        "The property `b` was removed. Consumers may rely on it, so mode `forward` does not allow it. "
        "Keep it, at least as an optional property; new optional properties may be added beside it."
    )


def test_the_mode_before_the_change_decides():
    """The mode before the change decides, not the new one. (R191)"""
    assert refusal(AB, A, mode=COMPATIBLE, new_mode=NONE)
    assert refusal(A, A | {"required": ["a"]}, mode=COMPATIBLE, new_mode=FORWARD)
    assert str(evolve(AB, A, mode=NONE, new_mode=FORWARD).version) == "2.0.0"


TIGHTENING = [
    (A, A | {"title": "t", "description": "d"}, "1.2.4"),
    (A, AB, "1.3.0"),
    (A, A | {"required": ["a"]}, "1.3.0"),
    (A, A | {"additionalProperties": False}, "2.0.0"),
    (A | {"additionalProperties": False}, A, "2.0.0"),
    (ARR, ARR | {"additionalItems": False}, "2.0.0"),
    (A, '{"type": "object",  "properties": {"a": {"type": "string"}}}', "1.2.4"),
]


@pytest.mark.parametrize(("old", "new", "version"), TIGHTENING)
def test_tightening_permits_some_major_changes(old, new, version):
    """When `forward` becomes `compatible`, objects and arrays may be opened and closed to members that they do not
    name, and the version follows from the levels of `forward`. (R193)
    """
    assert str(evolve(old, new, FORWARD, COMPATIBLE).version) == version


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (row[0], row[1])
        for row in EXAMPLES
        if {each.split()[0] for each in row[2]}
        - {EXTENDED, ADDED, FLIPPED}
        - {"ADDITIONAL_ITEMS_CHANGED", "TITLE_CHANGED", "DESCRIPTION_CHANGED"}
    ],
)
def test_tightening_forbids_everything_else(old, new):
    """When `forward` becomes `compatible`, no other change may accompany it, not even a minor one. (R193)"""
    assert refusal(old, new, FORWARD, COMPATIBLE).detail.startswith("Invalid schema: ")


def test_tightening_lists_what_it_forbids():
    """Every change that may not accompany the change of mode is reported, with the same messages as otherwise.
    (R193)
    """
    refused = refusal(
        {"properties": {"a": {}, "b": S}}, {"properties": {"a": S}, "required": ["a"]}, FORWARD, COMPATIBLE
    )

    assert refused.detail == (
        "Invalid schema: #/properties/a: schema types cannot be narrowed, "
        "#/properties/b: schema properties cannot be removed"
    )
    assert "a change of mode from `forward` to `compatible` does not allow it" in refused.reasons[0].explanation


def test_none_to_compatible_permits_everything():
    """When `none` becomes `compatible`, the old schema does not restrict the new one. (R194)"""
    assert str(evolve(AB, {"properties": {"z": INT}}, NONE, COMPATIBLE).version) == "2.0.0"


def test_a_refusal_is_of_bounded_length():
    """If thousands of changes are forbidden, the broker reports only a limited number. (R192, deviation)"""
    old = {"properties": {f"{'p' * 100}{number}": S for number in range(5_000)}}

    refused = refusal(old, {"properties": {}})

    assert len(refused.detail) < 3 * MAX_MESSAGE_CHARACTERS
    assert len(refused.reasons) < 500


def test_an_entangled_schema_cannot_follow():
    """If references lead to a changed part along 2**60 paths, the new schema is refused rather than compared for ever.
    (R196)
    """
    definitions = {f"d{n}": {"properties": {s: {"$ref": f"#/definitions/d{n + 1}"} for s in "lr"}} for n in range(60)}
    old = {"properties": {"p": {"$ref": "#/definitions/d0"}}, "definitions": {**definitions, "d60": {}}}

    with pytest.raises(Invalid, match="too entangled"):
        evolve(old, old | {"definitions": {**definitions, "d60": {"title": "t"}}})


def test_what_many_parts_share_may_be_compared():
    """References may lead to a part along 2**60 paths if that part has not changed. (R196)"""
    definitions = {f"d{n}": {"properties": {s: {"$ref": f"#/definitions/d{n + 1}"} for s in "lr"}} for n in range(60)}
    schema = {"properties": {"p": {"$ref": "#/definitions/d0"}}, "definitions": {**definitions, "d60": {}}}

    assert str(evolve(schema, schema | {"title": "t"}).version) == "1.2.4"
