"""The messages of `make` for unknown words, and Python programs within scripts."""

import re
import subprocess
from importlib import import_module

from tests.support.environment import plain_environment
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE

IMPORT = re.compile(r"from ((?:nakadi|infra|services|tests)[\w.]*) import (\w+(?:, \w+)*)")


def test_an_engine_that_is_not_known_is_refused():
    """`make run` with another engine than those there are starts nothing, and names the ones there are."""
    # Under `make test`, the variables of the outer one would be handed on otherwise.
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
    """No tool for Python looks into a shell script."""
    scripts = [ROOT / "console/build.sh", *(ROOT / "scripts").iterdir(), ROOT / "Makefile"]
    found = [each for path in scripts if path.is_file() for each in IMPORT.findall(path.read_text())]
    assert found
    for module, names in found:
        for name in names.split(", "):
            assert hasattr(import_module(module), name), f"{module} has no {name}"
