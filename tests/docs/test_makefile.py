"""What `make` says to words that it does not know."""

import subprocess

from tests.support.pages import ROOT
from tests.support.patience import PATIENCE


def test_an_engine_that_is_not_known_is_refused():
    """`make run` with another engine than those there are starts nothing, and names the ones there are."""
    # Under `make test`, the variables of the outer one would be handed on.
    command = ["env", "-u", "MAKEFLAGS", "-u", "MAKELEVEL", "make", "run", "ENGINE=rabbit"]

    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert answer.returncode == 2
    assert "ENGINE=rabbit is not known: it is embedded, which is the default, kafka, or aws-local" in answer.stderr
    assert answer.stdout == ""
