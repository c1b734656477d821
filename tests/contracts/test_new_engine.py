"""A new engine is an entry in two tables, as docs/architecture.md says; then the contract suite judges it."""

import subprocess
import sys

import pytest

SUITE = "tests/contracts/test_registry.py"


def run_suite_on_new_engine(name: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "pytest", SUITE, "-k", "json-file", "-q", "-p", "tests.support.new_engine"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "NEW_ENGINE": name}
    return subprocess.run(
        [*program, "-p", "no:cacheprovider"], env=environment, capture_output=True, text=True, check=False
    )


def test_a_new_engine_that_keeps_the_promises_passes():
    """A registry in a JSON file, of 60 lines, passes the contract suite."""
    result = run_suite_on_new_engine("json-file")
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


@pytest.mark.long("tests/contracts/test_new_engine.py::test_a_new_engine_that_keeps_the_promises_passes")
def test_the_suite_objects_to_an_engine_that_breaks_a_promise():
    """A registry that keeps what it was told to remove fails, by the name of the promise."""
    result = run_suite_on_new_engine("forgetful")
    assert result.returncode == 1
    assert "test_begin_anew_after_they_were_removed" in result.stdout
