"""A new engine is a folder and a line in two tables (docs/architecture.md). Then the contract suite tests it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import plain_environment

ROOT = Path(__file__).parents[2]
PACKAGE = Path("layers", "nakadi", "python", "nakadi")

SUITES = [f"tests/contracts/test_{port}.py" for port in ("registry", "log_index", "coordination", "eid_claims")]
TABLES = "tests/unit/app/test_engines.py"

OPENER = """def _open_json_file_registry(url: str) -> Registry:
    from nakadi.engines.json_file.registry import {name}

    return {name}(Path(url.removeprefix("json-file://")))


"""


def follow_recipe(root: Path, name: str) -> None:
    """Add an engine with this name, which only has registries, to a copy of the package and its tests."""
    unneeded = shutil.ignore_patterns("__pycache__")
    for part in (PACKAGE, Path("tests")):
        shutil.copytree(ROOT / part, root / part, ignore=unneeded)
    shutil.copy(ROOT / "pyproject.toml", root)
    engine = root / PACKAGE / "engines" / "json_file"
    engine.mkdir()
    (engine / "__init__.py").write_text('"""An engine in a JSON file."""\n')
    shutil.copy(ROOT / "tests" / "support" / "new_engine.py", engine / "registry.py")
    openers = root / PACKAGE / "app" / "engines.py"
    insert_beside_line(openers, before="REGISTRY_OPENERS: ", text=OPENER.format(name=name))
    insert_beside_line(openers, after="REGISTRY_OPENERS: ", text='    "json-file": _open_json_file_registry,\n')
    tables = root / "tests" / "support" / "engines.py"
    insert_beside_line(tables, after="REGISTRIES: ", text='    "json-file": "json-file://{folder}/registry.json",\n')


def insert_beside_line(path: Path, *, text: str, before: str = "", after: str = "") -> None:
    """Insert a text before or after the only line in a file that begins with this prefix."""
    lines = path.read_text().splitlines(keepends=True)
    [index] = [number for number, line in enumerate(lines) if line.startswith(before or after)]
    lines.insert(index if before else index + 1, text)
    path.write_text("".join(lines))


def run_tests(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = plain_environment(PYTHONPATH=f"{root / PACKAGE.parent}:{root}:{ROOT}")
    return subprocess.run(program, env=environment, cwd=root, capture_output=True, text=True, check=False)


def test_a_new_engine_that_keeps_the_promises_passes(tmp_path):
    """A registry in a JSON file, with 60 lines of code, passes the contract suite, and no suite of another port runs on
    it."""
    follow_recipe(tmp_path, "JsonFileRegistry")
    result = run_tests(tmp_path, *SUITES, TABLES, "-k", "json-file or test_engines")
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


@pytest.mark.long("tests/contracts/test_new_engine.py::test_a_new_engine_that_keeps_the_promises_passes")
def test_the_suite_objects_to_an_engine_that_breaks_a_promise(tmp_path):
    """If a registry keeps documents that it should remove, the suite fails at the test of that promise."""
    follow_recipe(tmp_path, "ForgetfulRegistry")
    result = run_tests(tmp_path, SUITES[0], "-k", "json-file")
    assert result.returncode == 1
    assert "test_begin_anew_after_they_were_removed" in result.stdout
