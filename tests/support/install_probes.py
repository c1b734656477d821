"""Programs that check a fresh install, for its own Python: imports, a broker, the fixture, the command, types."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.environment import plain_environment
from tests.support.installed import PROMISES, find_unpromised_modules
from tests.support.patience import PATIENCE

# This skips programs, because importing one may run it.
IMPORTS = """
import importlib, json, pkgutil, sys

packages, others = json.loads(sys.argv[1])
failed, count = [], 0
for package in packages:
    imported = importlib.import_module(package)
    assert imported.__file__.startswith(sys.prefix), imported.__file__
    for module in pkgutil.walk_packages(imported.__path__, package + "."):
        if module.name.startswith(tuple(others)) or module.name.endswith("__main__"):
            continue
        count += 1
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed.append(f"{module.name}: {error}")
print(json.dumps([count, failed]))
"""

BROKER = """
import json, urllib.request
from nakadi.local import Broker

def ask(url, body=None):
    headers = {"Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(url, content, headers), timeout=60).read()

with Broker() as broker:
    schema = {"type": "json_schema", "schema": "{}"}
    types = f"{broker.url}/event-types"
    ask(types, {"name": "a", "owning_application": "me", "category": "undefined", "schema": schema})
    ask(f"{types}/a/events", [{"n": 1}])
    [partition] = json.loads(ask(f"{types}/a/partitions"))
    print(int(partition["newest_available_offset"].rpartition("-")[2]))
"""

JARS = """
from pathlib import Path
from nakadi_jobs.session import iceberg_jar

print(*(Path(each).name for each in iceberg_jar().values()))
"""

FIXTURE = """
def test_it(nakadi_broker):
    assert nakadi_broker.url.startswith("http://127.0.0.1:")
"""

COMMAND = """
import sys
from importlib.metadata import entry_points

[program] = entry_points(group="console_scripts", name="nakadi")
sys.exit(program.load()())
"""

TYPED = """
from nakadi.local import Broker

with Broker() as broker:
    reveal_type(broker.url)
"""


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the Python of an environment in its folder, without this checkout in its environment."""
    return subprocess.run(
        [str(python), *arguments],
        cwd=python.parents[1],
        env=plain_environment(NAKADI_CONSOLE=""),
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )


def failed_imports(python: Path, extra: str) -> list[str]:
    """The modules of the extra that cannot be imported, with the reasons."""
    done = run(python, "-c", IMPORTS, json.dumps([PROMISES[extra], find_unpromised_modules(extra)]))
    if done.returncode:
        return [done.stderr]
    count, failed = json.loads(done.stdout.splitlines()[-1])
    assert count >= 3, count
    return failed


def newest_offset(python: Path) -> str:
    """Publish an event to a broker of this install, and return the newest offset, or the traceback."""
    done = run(python, "-c", BROKER)
    return done.stdout.strip() or done.stderr


def jars_of_jobs(python: Path) -> str:
    """The names of the jars that jobs of this install add to Spark, or the traceback."""
    done = run(python, "-c", JARS)
    return done.stdout.strip() or done.stderr


def fixture_outcome(python: Path) -> str:
    """Run a test that uses the fixture, and return the last lines of pytest."""
    file = python.parents[1] / "test_it.py"
    file.write_text(FIXTURE)
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file))
    return done.stdout[-2000:] + done.stderr[-2000:]


def report_version(python: Path) -> tuple[int, str]:
    """The exit code of `nakadi --version`, and its output."""
    done = run(python, "-c", COMMAND, "--version")
    return done.returncode, (done.stdout + done.stderr).strip()


def report_types(mypy_python: str, python: Path) -> str:
    """The output of mypy for three lines that use the broker of this install."""
    file = python.parents[1] / "typed.py"
    file.write_text(TYPED)
    done = subprocess.run(
        [mypy_python, "-m", "mypy", "--strict", "--python-executable", str(python), "--cache-dir=/dev/null", file.name],
        cwd=file.parent,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    return done.stdout + done.stderr
