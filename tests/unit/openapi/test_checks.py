"""Validation of bodies against the description."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nakadi import openapi
from nakadi.model.outcomes import Violation
from nakadi.openapi import checks
from nakadi.openapi.checks import (
    MESSAGES_BY_FIELD_AND_RULE,
    MESSAGES_BY_RULE,
    component_schema,
    conforms_to_schema,
    openapi_violations,
)
from tests.support.environment import plain_environment

ROOT = Path(__file__).parents[3]

CHECKED = (
    "AdminLists",
    "CompatibilityQuestion",
    "CursorResetList",
    "EventTypeDraft",
    "FeatureSwitch",
    "PartitionCount",
    "SchemaDraft",
    "StorageDraft",
    "SubscriptionCursorList",
    "SubscriptionDraft",
    "SubscriptionEventStreamParameters",
)

CURSOR = {"event_type": "order", "partition": "0", "offset": "BEGIN", "cursor_token": "t"}
SENT = {
    "name": "order",
    "owning_application": "shop",
    "category": "data",
    "schema": {"type": "json_schema", "schema": "{}"},
}


def violations_of(name, body) -> list[tuple[str, str]]:
    return [(each.path, each.message) for each in openapi_violations(name, body)]


@pytest.mark.parametrize("name", sorted(openapi.document()["components"]["schemas"]))
def test_a_schema_that_is_read_alone_is_the_one_of_the_whole_description(name):
    """Only the lines of the required schemas are read, and the result equals that of reading the whole document."""
    assert component_schema(name) == openapi.document()["components"]["schemas"][name]


def test_a_schema_that_is_not_described_is_not_found():
    """A schema name that is in no file is a bug."""
    with pytest.raises(KeyError):
        component_schema("NoSuchSchema")


@pytest.mark.parametrize("name", CHECKED)
def test_examples_of_the_description_conform_to_it(name):
    """The examples of the description pass the check."""
    example = component_schema(name).get("example")
    if example is not None:
        assert conforms_to_schema(name, example)
        assert openapi_violations(name, example) == ()


def _rules(schema, path=""):
    schema = openapi.resolve_reference(schema)
    yield from ((path, rule) for rule in checks.COPIED_KEYWORDS if rule in schema and rule not in ("type", "required"))
    yield from _rules(schema["items"], path) if "items" in schema else ()
    for name, each in schema.get("properties", {}).items():
        yield from _rules(each, f"{path}.{name}" if path else name)


@pytest.mark.parametrize("name", sorted(set(CHECKED) - {"SubscriptionEventStreamParameters", "PartitionCount"}))
def test_every_rule_of_a_checked_body_has_a_message(name):
    """Every fault that the compiled check finds can be reported in the words of the API. For two bodies, only lists and
    missing members are checked."""
    without = [
        (path, rule)
        for path, rule in _rules(component_schema(name))
        if (path, rule) not in MESSAGES_BY_FIELD_AND_RULE and rule not in MESSAGES_BY_RULE
    ]
    assert without == []


def test_null_is_a_missing_member():
    """A null counts as a missing member; if the member has a default, a null is a mistake. (R5, R21)"""
    assert violations_of("EventTypeDraft", {**SENT, "default_statistic": None, "authorization": None}) == []
    assert violations_of("EventTypeDraft", {**SENT, "cleanup_policy": None}) == [("cleanup_policy", "must not be null")]
    assert violations_of("EventTypeDraft", {**SENT, "category": None}) == [("category", "must not be null")]
    assert violations_of("EventTypeDraft", {n: v for n, v in SENT.items() if n != "category"}) == [
        ("category", "must not be null")
    ]


def test_what_is_missing_in_the_body_itself_is_reported_first():
    """A fault of the name is reported first, then missing members of the body itself, then all other faults in the
    order of the fields.
    """
    body = {"name": "", "owning_application": "x" * 1001, "schema": {"type": None, "schema": None}}
    assert violations_of("EventTypeDraft", body) == [
        ("name", "format not allowed"),
        ("name", "the length of the name must be >= 1 and <= 255"),
        ("category", "must not be null"),
        ("owning_application", "size must be between 0 and 1000"),
        ("schema.type", "must not be null"),
        ("schema.schema", "must not be null"),
    ]


def test_a_name_ends_where_it_ends():
    """A name with a line break at its end is refused."""
    assert violations_of("EventTypeDraft", {**SENT, "name": "order\n"}) == [("name", "format not allowed")]


def test_only_the_first_items_of_a_list_that_is_too_long_are_reported():
    """A list that is too long does not make the answer equally long."""
    found = violations_of("EventTypeDraft", {**SENT, "ordering_key_fields": ["x" * 1001] * 5000})
    assert found[0] == ("ordering_key_fields", "size must be between 0 and 100")
    assert [path for path, _ in found[1:]] == [f"ordering_key_fields[{index}]" for index in range(100)]


def test_cursors_conform_if_their_members_are_texts():
    """The members of a cursor have to be strings; other scalars must be converted to strings before the check."""
    assert conforms_to_schema("SubscriptionCursorList", {"items": [CURSOR, {**CURSOR, "unknown": 1}]})
    for items in (None, [None], [{}], [{**CURSOR, "partition": 0}], [{**CURSOR, "offset": ""}], "x"):
        assert not conforms_to_schema("SubscriptionCursorList", {"items": items})
    assert not conforms_to_schema("SubscriptionCursorList", [])
    assert openapi_violations("CursorResetList", {"items": [{**CURSOR, "partition": ""}]}) == (
        Violation("items[0].partition", "cursor partition cannot be empty"),
    )


def test_nothing_is_loaded_before_a_body_is_checked():
    """Nothing is loaded before a body is checked: most functions check no body, and start faster without the compiler
    and the YAML reader.
    """
    code = "import sys, nakadi.openapi.checks; sys.exit(bool({'yaml', 'fastjsonschema'} & set(sys.modules)))"
    environment = plain_environment(PYTHONPATH=str(ROOT / "layers" / "nakadi" / "python"))
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0


def test_the_description_is_read_in_blocks():
    """Each schema is a separate block below `schemas:`; otherwise, the reader would not find it."""
    names = re.findall(r"^    (\w+):$", checks._schema_lines_text(), re.MULTILINE)
    assert sorted(names) == sorted(openapi.document()["components"]["schemas"])
