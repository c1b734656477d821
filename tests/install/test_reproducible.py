"""Builds are reproducible: the same sources give the same bytes, wherever and whenever they are built."""

import hashlib
import os
import shutil
import subprocess
import tarfile

import pytest

from tests.support.environment import plain_environment
from tests.support.installed import build_distribution
from tests.support.pages import ROOT

# A time before any build, which differs from the times in a checkout.
LONG_AGO = 1_000_000_000


def name_and_digest(path):
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def first_build(tmp_path_factory):
    """The wheel and the source distribution of this checkout."""
    return {kind: build_distribution(kind, ROOT, tmp_path_factory.mktemp(kind)) for kind in ("wheel", "sdist")}


@pytest.fixture(scope="module")
def build_elsewhere(tmp_path_factory):
    """A function that builds the same sources in another folder, with other file times and permissions."""
    folder = tmp_path_factory.mktemp("a checkout") / "elsewhere"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, env=plain_environment(), capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
            (folder / name).chmod((ROOT / name).stat().st_mode | 0o060)
            os.utime(folder / name, (LONG_AGO, LONG_AGO))
    console = ROOT / ".cache" / "console" / "built"
    if console.is_dir():
        shutil.copytree(console, folder / ".cache" / "console" / "built", copy_function=shutil.copyfile)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_two_builds_are_the_same(first_build, build_elsewhere, tmp_path, kind):
    """A second build in another checkout has the same name and the same bytes."""
    assert name_and_digest(build_distribution(kind, build_elsewhere, tmp_path)) == name_and_digest(first_build[kind])


@pytest.mark.long
def test_the_wheel_of_a_source_distribution_is_the_same(first_build, tmp_path):
    """A build from the source distribution yields the published wheel."""
    with tarfile.open(first_build["sdist"]) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [folder] = (tmp_path / "unpacked").iterdir()

    assert name_and_digest(build_distribution("wheel", folder, tmp_path / "built")) == name_and_digest(
        first_build["wheel"]
    )
