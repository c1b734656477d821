"""Developers find the tests of a module by its name, which is in the names of its test modules."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layers/nakadi/python/nakadi"
UNIT = ROOT / "tests/unit"
CLIENT = ROOT / "nakadi_client"
RELAY = ROOT / "nakadi_relay"

RULE = (
    "A unit test module is tests/unit/<room>/test_<module>.py for <room>/<module>.py of the package, or"
    " test_<module>_<part>.py where a module has several; what tests a room's __init__.py has the room's name there."
    " Likewise tests/client for nakadi_client, and tests/relay for nakadi_relay."
    " Rename these with `git mv` to begin with the name of the module that they test:"
)


def modules_in(room: Path) -> set[str]:
    """Names of modules and folders in a room, and the room's own name, for its `__init__.py`."""
    if not room.is_dir():
        return set()
    # After a move, the old folder may still contain compiled modules.
    folders = {each.parent.name for each in room.glob("*/__init__.py")}
    return {each.stem for each in room.glob("[!_]*.py")} | folders | {room.name}


def module_of(test: Path, unit: Path, package: Path) -> str | None:
    """The module that a test module is named after: the longest name of a module with which the test module's name
    begins.
    """
    name = test.stem.removeprefix("test_")
    room = package / test.parent.relative_to(unit)
    fitting = [each for each in modules_in(room) if name == each or name.startswith(f"{each}_")]
    return max(fitting, key=len, default=None)


def find_misnamed(unit: Path, package: Path) -> list[str]:
    """Unit test modules without a module of their name."""
    tests = sorted(unit.rglob("test_*.py"))
    return [str(test.relative_to(unit)) for test in tests if module_of(test, unit, package) is None]


def test_unit_tests_are_named_after_modules():
    """A developer who changes a module of the package finds its tests by the module's name."""
    names = (
        find_misnamed(UNIT, PACKAGE)
        + find_misnamed(ROOT / "tests/client", CLIENT)
        + find_misnamed(ROOT / "tests/relay", RELAY)
    )
    assert not names, f"{RULE} {', '.join(names)}"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("schemas/test_limits.py", "limits"),
        ("schemas/test_limits_bombs.py", "limits"),
        ("schemas/test_limit_bombs.py", None),
        ("schemas/test_limitsbombs.py", None),
        ("schemas/test_limits_of_paths_deep.py", "limits_of_paths"),
        ("schemas/test_schemas_documents.py", "schemas"),
        ("routes/test_cursors.py", None),
        ("http/routes/test_cursors.py", "cursors"),
        ("http/test_routes_order.py", "routes"),
        ("http/test_cursors.py", None),
    ],
)
def test_the_longest_name_counts_and_the_room_too(tmp_path, name, module):
    """The check reports a test module in the wrong room, or with only a part of a module's name."""
    for path in (
        "schemas/limits.py",
        "schemas/limits_of_paths.py",
        "http/routes/__init__.py",
        "http/routes/cursors.py",
    ):
        (tmp_path / "package" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / path).touch()
    test = tmp_path / "unit" / name
    test.parent.mkdir(parents=True)
    test.touch()

    assert module_of(test, tmp_path / "unit", tmp_path / "package") == module
    assert find_misnamed(tmp_path / "unit", tmp_path / "package") == ([] if module else [name])
