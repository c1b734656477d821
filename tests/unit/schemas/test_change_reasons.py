"""Reasons that are written for people."""

import pytest

from nakadi.schemas.change_reasons import reason_against
from nakadi.schemas.changes import ChangeKind, SchemaChange
from nakadi.schemas.document import ROOT_PATH


@pytest.mark.parametrize("kind", ChangeKind)
def test_every_change_can_be_explained(kind):
    """Every refusal tells people which change was made, why it is refused, and the remedy. (R192)"""
    explanation = reason_against(SchemaChange(kind, ROOT_PATH / "properties" / "age"), "mode `forward`").explanation

    assert explanation.count(". ") == 2
    assert "so mode `forward` does not allow it" in explanation
    assert "{" not in explanation


def test_names_may_be_anything():
    """Names that look like placeholders or prose are treated as names. (R192)"""
    explanation = reason_against(
        SchemaChange(ChangeKind.PROPERTY_REMOVED, ROOT_PATH / "properties" / "{x}"), "it"
    ).explanation
    assert explanation.startswith("The property `{x}` was removed. ")


def test_the_root_has_no_name():
    """The location of a change at the root is "the root". (R192)"""
    assert reason_against(SchemaChange(ChangeKind.TYPE_CHANGED, ROOT_PATH), "it").explanation.startswith(
        "The type of the root of the schema changed."
    )
