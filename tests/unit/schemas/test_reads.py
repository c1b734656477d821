"""What a schema says about members that are read, and how a schema change affects them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi.model.reads import ReadChangeKind
from nakadi.schemas.read_paths import read_path_text
from nakadi.schemas.reads import MAX_CHANGES, declared_members, find_read_changes, unknown_paths

TEXT, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}


def an_object(required=(), **properties):
    return {"type": "object", "properties": properties, "required": [*required]}


WAYS_TO_DESCRIBE = {
    "a property": an_object(a=an_object(b=TEXT)),
    "a reference": an_object(a={"$ref": "#/definitions/d"}) | {"definitions": {"d": an_object(b=TEXT)}},
    "a chain of references": {
        "$ref": "#/definitions/e",
        "definitions": {"d": an_object(b=TEXT), "e": an_object(a={"$ref": "#/definitions/d"})},
    },
    "one of all": {"allOf": [an_object(c=TEXT), an_object(a=an_object(b=TEXT))]},
    "one of any": an_object(a={"anyOf": [TEXT, an_object(b=TEXT)]}),
    "beside a combinator": an_object(a=an_object(b=TEXT) | {"oneOf": [{"required": ["b"]}, {}]}),
    "a condition": {"if": {"required": ["a"]}, "then": an_object(a=an_object(b=TEXT))},
    "a dependency": an_object(c=TEXT) | {"dependencies": {"c": an_object(a=an_object(b=TEXT))}},
    "a list": an_object(a={"type": "array", "items": an_object(b=TEXT)}),
    "a list in a list": an_object(a={"items": {"items": an_object(b=TEXT)}}),
    "an item at a position": an_object(a={"items": [TEXT, an_object(b=TEXT)]}),
    "an item behind the positions": an_object(a={"items": [TEXT], "additionalItems": an_object(b=TEXT)}),
    "a map": an_object(a={"additionalProperties": TEXT}),
    "a pattern": an_object(a={"patternProperties": {"^b": TEXT}}),
    "several types": an_object(a=an_object(b=TEXT) | {"type": ["object", "null"]}),
}


@pytest.mark.parametrize("schema", WAYS_TO_DESCRIBE.values(), ids=WAYS_TO_DESCRIBE)
def test_members_are_found_however_they_are_described(schema):
    """The search follows references, combinations, lists, maps and patterns. (D3)"""
    assert unknown_paths(schema, ["a", "a.b", "a.b.c", "x"]) == ("a.b.c", "x")


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, an_object(a={}), an_object(a={"additionalProperties": True})]
)
def test_what_is_permitted_is_not_declared(schema):
    """A schema has to describe a member before readers can rely on it. (D3)"""
    assert unknown_paths(schema, ["a.b"]) == ("a.b",)


@pytest.mark.parametrize("schema", WAYS_TO_DESCRIBE.values(), ids=WAYS_TO_DESCRIBE)
def test_the_same_schema_changes_nothing(schema):
    """(D6)"""
    assert find_read_changes(schema, schema, ["a", "a.b"]) == ()


@pytest.mark.parametrize("schema", WAYS_TO_DESCRIBE.values(), ids=WAYS_TO_DESCRIBE)
def test_a_member_that_is_gone_is_missed(schema):
    """A removed member is reported as missing, however the schema described it. (D6)"""
    [change] = find_read_changes(schema, an_object(c=TEXT), ["a.b"])
    assert (change.path, change.member, change.kind) == ("a.b", "a", "removed")


def schema_before(**a):
    return an_object(["a"], a=an_object(["b"], b=INTEGER, c=TEXT, d={"type": "array", "items": INTEGER}) | a)


@pytest.mark.parametrize(
    ("old", "new", "path", "member", "kind"),
    [
        (schema_before(), an_object(["a"], a=an_object(["b"], b=INTEGER)), "a.c", "a.c", "removed"),
        (schema_before(), an_object(["a"], a=an_object(["b"], b=INTEGER, d={"items": INTEGER})), "a", "a.c", "removed"),
        (schema_before(), an_object(["z"], z=schema_before()["properties"]["a"]), "a.b", "a", "renamed"),
        (
            schema_before(),
            schema_before(properties={**schema_before()["properties"]["a"]["properties"], "b": NUMBER}),
            "a.b",
            "a.b",
            "retyped",
        ),
        (
            schema_before(),
            schema_before(properties={**schema_before()["properties"]["a"]["properties"], "b": NUMBER}),
            "a",
            "a.b",
            "retyped",
        ),
        (schema_before(), schema_before(type=["object", "null"]), "a.b", "a", "retyped"),
        (schema_before(), schema_before(required=[]), "a.b", "a.b", "optional"),
        (schema_before(), schema_before() | {"required": []}, "a.b", "a", "optional"),
        (an_object(["a"], a=TEXT), an_object(a=TEXT) | {"anyOf": [{"required": ["a"]}, {}]}, "a", "a", "optional"),
        (an_object(a={"enum": [1, 2]}), an_object(a={"enum": [1, "x"]}), "a", "a", "retyped"),
        (an_object(a=INTEGER), an_object(a={"anyOf": [INTEGER, TEXT]}), "a", "a", "retyped"),
        (an_object(a={"type": "array", "items": TEXT}), an_object(a={"type": "array"}), "a", "a", "retyped"),
        (an_object(a={"items": {"items": TEXT}}), an_object(a={"items": {"items": NUMBER}}), "a", "a", "retyped"),
        (
            an_object(a={"additionalProperties": INTEGER}),
            an_object(a={"additionalProperties": TEXT}),
            "a.x",
            "a.x",
            "retyped",
        ),
        (an_object(a={"additionalProperties": INTEGER}), an_object(a={"type": "object"}), "a", r"a.*", "removed"),
    ],
)
def test_changes_that_readers_miss(old, new, path, member, kind):
    """The report names a member that was removed, renamed, given another type or made optional: at the path, on the
    way to it, or inside it. (D6)
    """
    found = [(each.path, each.member, each.kind) for each in find_read_changes(old, new, [path])]
    assert (path, member, kind) in found, found
    assert len({each[1] for each in found}) == len(found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (an_object(a=NUMBER), an_object(["a"], a=INTEGER)),
        (an_object(a={"type": ["string", "null"]}), an_object(a=TEXT)),
        (an_object(a=TEXT), an_object(a={"$ref": "#/definitions/t"}, b=TEXT) | {"definitions": {"t": TEXT}}),
        (an_object(["a"], a=TEXT), {"allOf": [an_object(a=TEXT), {"required": ["a"]}]}),
        (an_object(a={}), an_object(a=TEXT)),
        (an_object(a=TEXT, b=TEXT), an_object(a=TEXT)),
        (an_object(a={"type": "array", "items": NUMBER}), an_object(a={"type": "array", "items": INTEGER})),
    ],
)
def test_changes_that_readers_do_not_miss(old, new):
    """The report names no change to fewer types, stricter promises, an equivalent wording, or members that the
    readers do not read. (D6)
    """
    assert find_read_changes(old, new, ["a"]) == ()


def test_a_name_that_fits_twice_is_no_new_name():
    """If two members may be the renamed one, none is reported as the new name. (D6)"""
    [change] = find_read_changes(an_object(a=TEXT), an_object(b=TEXT, c=TEXT), ["a"])
    assert change.kind is ReadChangeKind.REMOVED


def test_schemas_that_contain_themselves_are_compared():
    """A schema that contains itself is compared once. (D6)"""
    tree = {"definitions": {"n": an_object(v=INTEGER, next={"$ref": "#/definitions/n"})}, "$ref": "#/definitions/n"}
    other = {"definitions": {"n": an_object(v=TEXT, next={"$ref": "#/definitions/n"})}, "$ref": "#/definitions/n"}
    assert [each.member for each in find_read_changes(tree, other, ["next"])] == ["next.v"]
    assert unknown_paths(tree, ["next.next.v", "next.x"]) == ("next.x",)
    assert set(map(read_path_text, declared_members(tree))) == {"v", "next"}


def doubling_schema(levels):
    """A schema that expands into more than 2**(levels - 1) schemas."""
    more = {f"d{n}": {"allOf": [{"$ref": f"#/definitions/d{n - 1}"}] * 2} for n in range(1, levels)}
    return {
        "definitions": {"d0": an_object(b=TEXT), **more},
        "properties": {"a": {"$ref": f"#/definitions/d{levels - 1}"}},
    }


def test_what_expands_without_end_is_not_compared():
    """If a schema expands too far, the report says that it was not compared. (D6)"""
    [change] = find_read_changes(doubling_schema(40), {}, ["a.b"])
    assert change.kind is ReadChangeKind.UNKNOWN


def test_the_changes_have_an_end():
    """(D6)"""
    wide = an_object(a=an_object(**{f"m{n}": TEXT for n in range(MAX_CHANGES + 5)}))
    assert len(find_read_changes(wide, an_object(a={"type": "object"}), ["a"])) == MAX_CHANGES


def test_the_innermost_members_are_listed():
    """The members of maps are listed as `*`. (D13)"""
    schema = an_object(a=an_object(b=TEXT, c={"items": an_object(d=TEXT)}), e={"additionalProperties": NUMBER}, f={})
    assert list(map(read_path_text, declared_members(schema))) == ["a.b", "a.c.d", "e.*", "f"]


plain = st.sampled_from([TEXT, NUMBER, INTEGER, {"type": "null"}, {"type": ["integer", "string"]}])
schemas = st.recursive(
    plain,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).flatmap(
            lambda properties: st.sets(st.sampled_from("abc")).map(
                lambda required: an_object(sorted(required), **properties)
            )
        )
        | st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts})
        | inner.map(lambda items: {"type": "array", "items": items})
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), schemas, max_size=3).map(lambda properties: an_object(**properties))


@given(objects, objects)
def test_changes_are_about_what_was_declared(old, new):
    """For any two schemas, if no declared member changes, the new schema still describes all of them. (D6)"""
    for path in map(read_path_text, declared_members(old)):
        changes = find_read_changes(old, new, [path])
        assert all(path == each.path for each in changes)
        if not changes:
            assert unknown_paths(new, [path]) == ()


def test_steps_are_shared():
    """When no steps are left, members that were not compared count as possibly changed. (D6)"""
    old, steps = an_object(a=TEXT, b=TEXT), [4]
    changes = [each.kind for path in ("a", "b") for each in find_read_changes(old, old, [path], steps)]
    assert ReadChangeKind.UNKNOWN in changes


def test_large_schemas_are_compared():
    """A schema with thousands of members, hundreds of which are read, stays within the limit of steps. (D6)"""
    large = an_object(a=an_object(**{f"m{n}": TEXT for n in range(5_000)}), **{f"n{n}": INTEGER for n in range(5_000)})
    paths = [f"n{n}" for n in range(199)]
    assert find_read_changes(large, large, ["a", *paths]) == ()
    assert unknown_paths(large, paths) == ()
