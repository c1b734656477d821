"""Earlier versions of the package, taken from the history of this checkout."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.environment import plain_environment
from tests.support.pages import ROOT

COMMIT_BY_FORMAT = {1: "671c7368^", 3: "0c277473^", 4: "83e06c1b^", 5: "104225cb^"}
"""For each format of the data file, the last commit that wrote it. Format 2 was never committed."""

VERSION_BEFORE = COMMIT_BY_FORMAT[5]


def package_at(commit: str, folder: Path) -> Path:
    """The package as it was at a commit: a folder that Python imports from."""
    command = ["git", "archive", commit, "layers/nakadi/python"]
    packed = subprocess.run(command, cwd=ROOT, env=plain_environment(), capture_output=True, check=False)
    if packed.returncode:
        pytest.skip("this checkout has no history")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "layers/nakadi/python"
