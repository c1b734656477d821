"""Is every setting explained, with its true default?"""

import re
from pathlib import Path

import pytest
from msgspec.structs import fields

from nakadi.app.settings import Settings

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
ROW = re.compile(r"^\| `(NAKADI_[A-Z_]+)` \| (?:`([^`]*)`)? ?\| (.+) \|$", re.MULTILINE)

EXPLAINED = {variable: (default, text) for variable, default, text in ROW.findall(OPERATIONS.read_text())}


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_a_setting_is_explained(setting):
    """Each setting has a row with its default."""
    default, text = EXPLAINED[f"NAKADI_{setting.name.upper()}"]

    assert text
    assert default == written(setting.default)


def test_nothing_else_is_explained():
    """A row for a setting that does not exist would mislead."""
    assert set(EXPLAINED) == {f"NAKADI_{setting.name.upper()}" for setting in fields(Settings)}


def written(default):
    """A default as somebody would write it into the environment."""
    if isinstance(default, tuple):
        return ",".join("=".join(each) if isinstance(each, tuple) else each for each in default)
    return str(default)
