"""The sources of the console."""

from __future__ import annotations

import subprocess

import pytest

from tests.console.conftest import CACHE, ROOT
from tests.support.environment import plain_environment


@pytest.mark.long
def test_the_types_of_the_console_fit_the_description_of_the_api():
    """The console sends and reads only members that the description has, and no value in its code has an unknown
    type.
    """
    compiler = ROOT / "console/node_modules/typescript/bin/tsc"
    if not compiler.exists() or not (ROOT / "console/src/openapi.d.ts").exists():
        pytest.skip("the console is not built with what its tests need: `make console` does it")
    command = [CACHE / "bin" / "node", compiler, "--project", ROOT / "console", "--noEmit"]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
