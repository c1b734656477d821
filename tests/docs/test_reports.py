"""A run with several processes counts and shows every outcome."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

@pytest.fixture
def failing_end():
    yield
    assert False

@pytest.fixture
def failing_set_up():
    assert False

def test_passes(): pass
def test_fails(): assert False
def test_fails_before(failing_set_up): pass
def test_fails_after(failing_end): pass
def test_is_skipped(): pytest.skip("no reason")
@pytest.mark.xfail
def test_fails_as_expected(): assert False
"""

CONFTEST = """
from tests.support.reports import report_less

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        report_less(config)

def pytest_runtest_logreport(report):
    if hasattr(report, "node"):
        print("reported", report.head_line, report.when, report.outcome)
"""

REPORTS = [
    ("test_passes", "call", "passed"),
    ("test_fails", "call", "failed"),
    ("test_fails_before", "setup", "failed"),
    ("test_fails_after", "call", "passed"),
    ("test_fails_after", "teardown", "failed"),
    ("test_is_skipped", "call", "skipped"),
    ("test_fails_as_expected", "call", "skipped"),
]


def test_every_outcome_is_counted(tmp_path):
    """Failures before and after a test count; set-ups and ends that pass are not reported."""
    (tmp_path / "test_outcomes.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").touch()
    # Loading every installed plugin would take most of the time.
    command = [sys.executable, "-m", "pytest", "-s", "-p", "xdist", "-p", "no:cacheprovider", "-n", "1", "."]
    environment = plain_environment(PYTHONPATH=str(ROOT), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=10 * PATIENCE, check=False
    )
    assert re.findall(r"reported (\w+) (\w+) (\w+)", done.stdout) == REPORTS, done.stdout + done.stderr
    counts = "1 failed, 2 passed, 1 skipped, 1 xfailed, 2 errors"
    assert counts in done.stdout.splitlines()[-1]
