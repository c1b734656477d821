"""The reference of the settings is complete and current."""

from pathlib import Path

import pytest
from msgspec.structs import fields

from nakadi.app import engines
from nakadi.app.settings import Settings
from scripts.settings_reference import REFERENCE, SOURCE, reference


def test_the_settings_reference_is_up_to_date():
    """docs/settings.md is the output of scripts/settings_reference.py; run the script after changing a setting."""
    assert REFERENCE.read_text() == reference(SOURCE.read_text())


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_each_setting_has_a_row_with_its_default(setting):
    """The reference, which a script generates from the source, has each setting with its default."""
    row = next(
        line for line in REFERENCE.read_text().splitlines() if line.startswith(f"| `NAKADI_{setting.name.upper()}` |")
    )

    _, _, default, description, _ = (cell.strip() for cell in row.split("|"))

    assert default.split("`")[1:2] == ([text] if (text := format_default(setting.default)) else [])
    assert description


def test_a_setting_without_a_description_is_refused():
    """The reference cannot be generated if a setting has no description."""
    with pytest.raises(ValueError, match="speed has no description"):
        reference("class Settings:\n    # Speed\n    speed: int = 1\n    limit: int = 2\n    '''The limit.'''\n")


@pytest.mark.parametrize("openers", [name for name in vars(engines) if name.endswith("_OPENERS")])
def test_the_form_of_each_url_is_shown(openers):
    """The scheme of each engine is among the settings, or in the docstring of the function that opens it."""
    shown = REFERENCE.read_text() + Path(engines.__file__).read_text()
    assert [scheme for scheme in getattr(engines, openers) if f"`{scheme}:" not in shown] == []


def format_default(default):
    """A default as a value in the environment."""
    if isinstance(default, tuple):
        return ",".join("=".join(each) if isinstance(each, tuple) else each for each in default)
    return str(default)
