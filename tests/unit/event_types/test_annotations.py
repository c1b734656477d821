"""Annotations and labels."""

import pytest

from nakadi.event_types.annotations import annotation_violations, label_violations
from tests.support.patience import measure_cpu

EMPTY = "Key cannot be empty"
DOMAIN = "Key name should be an optional lowercase domain name with path"
LONG_PREFIX = "Key prefix cannot be more than 253 characters."
LONG_NAME = "Key name cannot be more than 63 characters."
ENDS = "Key name should start and end with a letter or a digit"


def messages(key: str) -> list[str]:
    found = list(annotation_violations({key: "value"}))
    assert {each.path for each in found} <= {f"annotations[{key}]"}
    assert [each.message for each in found] == [each.message for each in label_violations({key: "value"})]
    return [each.message for each in found]


@pytest.mark.parametrize(
    "key",
    [
        "test-annotation",
        "nakadi.io/test-annotation",
        "nakadi-test/test-Annotation",
        "test/t-e_s.t",
        "a" * 253 + "/" + "b" * 63,
        "a",
    ],
)
def test_valid_keys_have_no_violations(key):
    """A key is a name, optionally after a domain name and a slash. (R252, R254)"""
    assert messages(key) == []


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a/b/c", [DOMAIN, LONG_PREFIX, LONG_NAME, ENDS]),
        ("/test", [DOMAIN, LONG_NAME, ENDS]),
        ("test/", [ENDS]),
        ("test/_test", [ENDS]),
        ("test/test.", [ENDS]),
        ("test/te*st", [ENDS]),
        ("A-test/test", [DOMAIN, LONG_PREFIX, LONG_NAME]),
        (".test/test", [DOMAIN]),
        ("test..com/test", [DOMAIN]),
        ("test.-org/test", [DOMAIN]),
        ("", [EMPTY, ENDS]),
        ("a" * 254 + "/b", [LONG_PREFIX]),
        ("ü/b", [DOMAIN, LONG_PREFIX, LONG_NAME]),
        ("b" * 64, [LONG_NAME]),
        ("A" * 254 + "/" + "_" * 64, [DOMAIN, LONG_PREFIX, LONG_NAME, ENDS]),
        ("test\n", [ENDS]),
    ],
)
def test_invalid_keys_have_violations(key, expected):
    """Each rule that a key breaks is reported on a separate line; a bad prefix also breaks the rules on length.

    (R252, R253, R254)
    """
    assert messages(key) == expected


def test_values_of_annotations_have_a_maximum_length():
    """The value of an annotation has up to 1000 characters of any kind, or none. (R21, R255)"""
    assert not list(annotation_violations({"a": "ü" * 1000, "b": None, "c": "", "d": "*\n"}))
    (violation,) = annotation_violations({"a": "x" * 1001})
    assert (violation.path, violation.message) == ("annotations[a]", "size must be between 0 and 1000")


@pytest.mark.parametrize("value", ["", "a", "A-b_c.9", "x" * 63, None])
def test_valid_values_of_labels(value):
    """The value of a label is a short word, or empty. (R255)"""
    assert not list(label_violations({"a": value}))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x" * 64, ["size must be between 0 and 63"]),
        ("-a", ["Should contain only allowed symbols"]),
        ("a.", ["Should contain only allowed symbols"]),
        ("a b", ["Should contain only allowed symbols"]),
        ("ü", ["Should contain only allowed symbols"]),
        ("a\n", ["Should contain only allowed symbols"]),
        ("!" * 64, ["size must be between 0 and 63", "Should contain only allowed symbols"]),
    ],
)
def test_invalid_values_of_labels_have_violations(value, expected):
    """The value of a label must not be long or contain other characters. (R21, R255)"""
    assert [each.message for each in label_violations({"a": value})] == expected


def test_hostile_keys_are_checked_quickly():
    """A key that is designed to be hard to match is refused as quickly as any other. (R252)"""
    keys = ("a" + "-" * 100_000, "a-" * 50_000 + "/", "a." * 50_000, "a" * 100_000 + "!/")
    assert measure_cpu(lambda: [list(annotation_violations({key: None})) for key in keys]) < 1000
