"""Runs the README's commands as a newcomer might: in a plain environment, a folder with a space in its name, and
another time zone.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.functions import ROOT
from tests.support.patience import PATIENCE
from tests.support.processes import run_process

NOT_COPIED = ("__pycache__", "node_modules", "cdk.out", "data", "dist", "*.egg-info")

# The order in which `make` creates these, so it treats everything as set up.
SET_UP = (
    ".venv/.venv",
    ".venv/.run",
    ".venv/.test",
    ".cache/node/.test",
    ".cache/node/.cdk",
    ".cache/console/.test",
    ".cache/kafka/.test",
    "tests/__pycache__/.compiled",
)

# Tests that start processes, one of each kind.
SOME = (
    "tests/unit/app/test_engines.py::test_an_engine_is_imported_when_it_is_asked_for",
    "tests/cli/test_local.py::test_the_console_script_of_a_checkout_runs",
    "tests/docs/test_readme.py::test_a_subscription_is_consumed",
    "tests/unit/local/test_pytest_plugin.py",
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of this checkout, without git, in a folder with a space in its name, with everything set up."""
    folder = tmp_path_factory.mktemp("a b") / "c"
    folder.mkdir()
    for each in ROOT.glob("[!.]*"):
        if each.is_dir() and each.name not in NOT_COPIED:
            shutil.copytree(each, folder / each.name, ignore=shutil.ignore_patterns(*NOT_COPIED))
        elif each.is_file():
            shutil.copy2(each, folder)
    environment = Path(sys.prefix)
    (folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy2(environment / "pyvenv.cfg", folder / ".venv")
    (folder / ".venv" / "lib").symlink_to(environment / "lib")
    for each in environment.glob("bin/python*"):
        (folder / ".venv" / "bin" / each.name).symlink_to(each.resolve())
    for each in (*SET_UP, ".cache/console/.run"):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).touch()
    built = ROOT / ".cache" / "console" / "built"
    if built.is_dir():
        (folder / ".cache" / "console" / "built").symlink_to(built)
    return folder


def bare_environment(checkout, zone):
    """An environment without a language, and with a home that does not exist."""
    return {"PATH": os.environ["PATH"], "HOME": str(checkout.parent / "no home"), "TZ": zone}


def run_with_umask(*command):
    return ["sh", "-c", 'umask 077; exec "$@"', "sh", *command]


def test_a_broker_starts_anywhere(checkout):
    """`make run` serves from a folder with a space in its name, without a home, and creates files that only their
    owner can read.
    """
    command = run_with_umask("make", "run", "PORT=0", "DATA=data for c")
    with run_process(command, bare_environment(checkout, "America/St_Johns"), checkout, subprocess.STDOUT) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+$", line.strip()):
                break
        else:
            pytest.fail("".join(lines))
        assert httpx.get(f"{found[0]}/event-types", timeout=PATIENCE).status_code == 200
        # make passes SIGTERM on to the broker; if make were killed, the broker would continue.
        process.terminate()
        process.wait(PATIENCE)
    [data] = checkout.glob("data for c/nakadi.db")
    assert data.stat().st_mode & 0o077 == 0
    assert (checkout / ".venv" / "bin" / "nakadi").exists()


def test_tests_pass_anywhere(checkout):
    """`make test` also passes in such a folder, without a home and in another time zone, for a few of the tests that
    start processes.
    """
    done = subprocess.run(
        run_with_umask("make", "test", f"ARGS=-q -p no:cacheprovider {' '.join(SOME)}"),
        cwd=checkout,
        env=bare_environment(checkout, "Pacific/Auckland"),
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1]), done.stdout


def test_processes_of_tests_get_an_environment_of_their_own():
    """No test passes on the machine's whole environment: whenever a test starts a process, it names the environment."""
    tests = (each for each in ROOT.glob("tests/**/*.py") if each.name != "__main__.py")
    without = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in tests
        if "subprocess" in (text := path.read_text("utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and starts_a_process(call) and says_no_environment(call)
    ]
    assert without == []


def starts_a_process(call):
    starts = {"run", "Popen", "check_output", "check_call", "call"}
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "subprocess"
        and function.attr in starts
    )


def says_no_environment(call):
    given = [each.value for each in call.keywords if each.arg == "env"]
    return not given or any(isinstance(each, ast.Attribute) and each.attr == "environ" for each in ast.walk(given[0]))
