"""The paths in an event that a schema describes."""

import pytest

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode
from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import effective_schema
from nakadi.schemas.nodes import MAX_PATH_SEGMENTS, defines_path, undefined_paths
from tests.support.patience import measure_cpu

ORDER = {
    "properties": {
        "id": {"type": "string"},
        "customer": {"properties": {"name": {}, "address": {"$ref": "#/definitions/address"}}},
        "items": {"type": "array", "items": {"properties": {"sku": {}}}},
        "with.dot": {},
    },
    "patternProperties": {"x_[a-z]+": {"properties": {"inner": {}}}},
    "additionalProperties": {"properties": {"other": {}}},
    "dependencies": {"id": {"properties": {"because_of_id": {}}}, "key.path": {"properties": {}}, "names": ["id"]},
    "definitions": {"address": {"properties": {"city": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    "path",
    [
        "id",
        "customer",
        "customer.name",
        "customer.address.city",
        "items",
        "x_a",
        "x_abc.inner",
        "because_of_id",
        "key.path",
    ],
)
def test_finds_properties(path):
    """Paths lead through properties, references, patterns and dependencies that are schemas. (R82, R83)"""
    assert defines_path(ORDER, path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "nothing",
        "id.more",
        "customer.nothing",
        "items.sku",
        "items.0",
        "with.dot",
        "x_",
        "a_x_b",
        "x_A",
        "other",
        "names",
    ],
)
def test_finds_nothing_else(path):
    """Paths lead neither into arrays nor into undeclared properties, and patterns have to match the whole name.
    (R83)"""
    assert not defines_path(ORDER, path)


A, B, AB = {"properties": {"a": {}}}, {"properties": {"b": {}}}, {"properties": {"a": {}, "b": {}}}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"allOf": [A, AB]}, True),
        ({"allOf": [A, B]}, False),
        ({"oneOf": [A, B]}, True),
        ({"oneOf": [A, AB]}, False),
        ({"oneOf": [B, B]}, False),
        ({"anyOf": [A, B]}, True),
        ({"anyOf": [A, AB]}, True),
        ({"anyOf": [B, B]}, False),
        ({**A, "anyOf": [B, AB]}, True),
        ({**A, "anyOf": [{"required": ["a"]}]}, False),
        ({**B, "anyOf": [A]}, False),
        ({"type": ["object", "null"], **A}, True),
        ({"type": "string", **A}, False),
        ({"enum": [{}], **A}, False),
    ],
)
def test_combinations_define_what_their_criterion_says(schema, found):
    """All members of allOf, exactly one of oneOf, or at least one of anyOf must define the path; keywords beside them
    count as one more member of allOf. (R83)"""
    assert defines_path(schema, "a") is found


def test_only_undefined_paths_are_returned():
    """Of several paths, the check reports only the missing ones, in order. (R82)"""
    assert undefined_paths(ORDER, ["zebra", "id", "apple", "customer.name"]) == ("zebra", "apple")


@pytest.mark.parametrize(
    ("category", "path", "found"),
    [
        (Category.UNDEFINED, "id", True),
        (Category.UNDEFINED, "metadata.occurred_at", False),
        (Category.BUSINESS, "id", True),
        (Category.BUSINESS, "metadata.occurred_at", True),
        (Category.DATA, "id", False),
        (Category.DATA, "data.id", True),
        (Category.DATA, "data.customer.address.city", True),
        (Category.DATA, "data_type", True),
        (Category.DATA, "metadata.occurred_at", True),
    ],
)
def test_paths_are_those_of_whole_events(category, path, found):
    """Paths are looked up in the effective schema, in which `data` is part of the envelope. (R81)"""
    effective = effective_schema(
        ORDER,
        event_type="e",
        category=category,
        mode=CompatibilityMode.FORWARD,
        cleanup_policy=CleanupPolicy.DELETE,
    )
    assert defines_path(effective, path) is found


def test_a_schema_may_contain_itself():
    """Through a recursive schema, a path may be long, up to a limit. (R83)"""
    tree = {"properties": {"child": {"$ref": "#"}, "leaf": {}}}

    assert defines_path(tree, ".".join(["child"] * (MAX_PATH_SEGMENTS - 1) + ["leaf"]))
    assert not defines_path(tree, ".".join(["child"] * MAX_PATH_SEGMENTS + ["leaf"]))
    assert not defines_path(tree, "child." * 100_000)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        pytest.param(
            {"anyOf": [{"properties": {"a": {"$ref": "#"}}}] * 10},
            marks=pytest.mark.long("tests/unit/schemas/test_nodes_paths.py::test_a_search_comes_to_an_end"),
        ),
        {"type": ["object"] * 10, "properties": {"a": {"$ref": "#"}}},
    ],
)
def test_a_search_comes_to_an_end(schema):
    """However a schema refers to itself, the search ends soon. (R83)"""

    def search():
        with pytest.raises(Invalid, match="too entangled"):
            undefined_paths(schema, [".".join("a" * (MAX_PATH_SEGMENTS - 1)) + ".b"])

    assert measure_cpu(search) < 10_000
