"""The messages of `make` for unknown values, and the Python programs within shell scripts."""

import re
import subprocess
from importlib import import_module

from tests.support.environment import plain_environment
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE

IMPORT = re.compile(r"from ((?:nakadi|infra|services|tests)[\w.]*) import (\w+(?:, \w+)*)")


def test_an_engine_that_is_not_known_is_refused():
    """`make run` with an unknown engine starts nothing, and lists the known engines."""
    # Without a plain environment, the variables of an outer `make test` would reach this make.
    answer = subprocess.run(
        ["make", "run", "ENGINE=rabbit"],
        cwd=ROOT,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert answer.returncode == 2
    assert "ENGINE=rabbit is unknown: choose embedded, which is the default, kafka, or aws-local" in answer.stderr
    assert answer.stdout == ""


def test_programs_within_scripts_import_what_there_is():
    """The imports in Python programs within shell scripts exist; no tool for Python looks there."""
    scripts = [ROOT / "console/build.sh", *(ROOT / "scripts").iterdir(), ROOT / "Makefile"]
    found = [each for path in scripts if path.is_file() for each in IMPORT.findall(path.read_text())]
    assert found
    for module, names in found:
        for name in names.split(", "):
            assert hasattr(import_module(module), name), f"{module} has no {name}"
