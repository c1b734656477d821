"""The client as its users get it: in a separate wheel, without the broker."""

from __future__ import annotations

import ast
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from nakadi_client import __version__
from nakadi_client.testing import LocalNakadi
from tests.support.environment import plain_environment
from tests.support.functions import ROOT
from tests.support.installed import build_distribution, link_distribution, read_requirements, required_distributions
from tests.support.patience import PATIENCE

PACKAGE = ROOT / "nakadi_client"

PROGRAM = """
import importlib, importlib.util, pkgutil, sys
import nakadi_client
from nakadi_client import Consumer, Producer

assert importlib.util.find_spec("nakadi") is None
assert nakadi_client.__file__.startswith(sys.prefix)
for module in pkgutil.walk_packages(nakadi_client.__path__, "nakadi_client."):
    importlib.import_module(module.name)
with Producer(sys.argv[1], "order") as producer:
    producer.send({"n": 1})
with Consumer(sys.argv[1], sys.argv[2]) as consumer:
    for batch in consumer:
        print([event["n"] for event in batch])
        batch.done()
        break
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_distribution("wheel", PACKAGE, tmp_path_factory.mktemp("wheel"))


def test_the_client_works_without_the_broker(wheel, tmp_path):
    """With only the requirements of its metadata, a program can import every module, and publish and consume events."""
    folder = tmp_path / "env"
    venv.EnvBuilder(symlinks=True).create(folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    [info] = site.glob("nakadi_client-*.dist-info")
    for each in required_distributions(read_requirements(PathDistribution(info))):
        link_distribution(each, site)
    with LocalNakadi() as nakadi:
        nakadi.create_event_type("order")
        done = subprocess.run(
            [folder / "bin" / "python", "-W", "error", "-c", PROGRAM, nakadi.url, nakadi.subscribe("order")],
            cwd=folder,
            env=plain_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.stdout, done.stderr) == ("[1]\n", "")


def test_the_wheel_has_every_module_and_says_that_it_is_typed(wheel):
    """No module is missing or compiled, and the wheel has the version of the code."""
    with zipfile.ZipFile(wheel) as archive:
        names = {each for each in archive.namelist() if ".dist-info/" not in each}
    modules = {str(Path("nakadi_client", each.relative_to(PACKAGE))) for each in PACKAGE.rglob("*.py")}
    assert names == {*modules, "nakadi_client/py.typed"}
    assert wheel.name == f"nakadi_client-{__version__}-py3-none-any.whl"


def test_the_source_distribution_builds_the_same_wheel(wheel, tmp_path):
    """The build needs nothing outside the package's folder."""
    archive = build_distribution("sdist", PACKAGE, tmp_path)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    again = build_distribution("wheel", tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path / "again")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_python_3_10_understands_every_module(module):
    """Python 3.10, which the package supports although the checkout does not run on it, can parse every module."""
    ast.parse(module.read_text(), feature_version=(3, 10))
