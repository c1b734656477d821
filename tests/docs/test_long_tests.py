"""The marks of long tests name tests that show the same behaviour in `make test`, and lists of chosen tests name
existing tests.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import kafka, laptop, workers
from tests.support.everything import is_requested

ROOT = Path(__file__).parents[2]


def long_marks() -> Iterator[tuple[str, str]]:
    """The place of each mark, and the tests that it names."""
    for path in sorted(ROOT.glob("tests/*/**/test_*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "mark.long(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.long":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant)
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", str(argument.value)


@cache
def decorators_of_tests(path: Path) -> dict[str, list[str]]:
    """The decorators of each test of a module."""
    return {
        node.name: [ast.unparse(each) for each in node.decorator_list]
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def fault_of(name: str) -> str | None:
    """Why a test that a mark names does not show the behaviour in `make test`; empty if it does."""
    file, _, test = name.partition("::")
    if not (ROOT / file).is_file():
        return "there is no such module"
    decorators = decorators_of_tests(ROOT / file).get(test.rpartition("::")[2])
    if decorators is None:
        return "there is no such test"
    return "it is long itself" if any(each.startswith("pytest.mark.long") for each in decorators) else None


def test_named_tests_run_in_every_run():
    """A mark must not name a test that does not exist or is long itself, because then no short test would show the
    behaviour.
    """
    marks = list(long_marks())
    assert marks
    assert [f"{place}: {name}: {fault}" for place, name in marks if (fault := fault_of(name))] == []


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("tests/docs/test_long_tests.py::test_faults_are_found", None),
        ("tests/docs/test_no_such.py::test_faults_are_found", "there is no such module"),
        ("tests/docs/test_long_tests.py::test_no_such", "there is no such test"),
        ("tests/glue_jobs/test_killed.py::test_jobs_are_killed", "it is long itself"),
    ],
)
def test_faults_are_found(name, fault):
    """The check finds marks that name no test, or a long one."""
    assert fault_of(name) == fault


@pytest.mark.parametrize(
    "chosen", [kafka.SELECTED_TESTS, workers.SELECTED_TESTS, laptop.SELECTED_TESTS], ids=["kafka", "workers", "laptop"]
)
def test_chosen_tests_exist(chosen):
    """Every name in a list of chosen tests is that of a test, so a renamed test does not drop out unnoticed."""
    there = {name for path in ROOT.glob("tests/e2e/**/test_*.py") for name in decorators_of_tests(path)}
    assert chosen <= there, chosen - there


@pytest.mark.parametrize(
    ("mark_expression", "arguments", "is_run"),
    [
        ("", ["tests"], False),
        ("", ["tests/room/test_module.py"], False),
        ("", ["tests/room/test_module.py::test_at_length"], True),
        ("", ["tests/room/test_module.py::test_quickly"], False),
        ("long", ["tests"], True),
    ],
)
def test_long_tests_run_when_they_are_asked_for(mark_expression, arguments, is_run):
    """A run leaves long tests out, unless its command line has their mark or their names."""
    assert is_requested("tests/room/test_module.py::test_at_length[1]", mark_expression, arguments) is is_run
