"""Installs the wheel in fresh environments, with each extra alone, and checks what the extra promises. These
environments only have links to packages of the tests' own environment; `make test-install` uses a registry.
"""

import sys
import zipfile

import pytest

from nakadi_cli import __version__
from tests.support import install_probes, installed
from tests.support.installed import EXTRAS, PLAIN


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return installed.build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """`environment(extra)` returns the Python of an environment with this extra and the packages in `more`."""
    made = {}

    def make(extra, *more):
        if (extra, *more) not in made:
            made[extra, *more] = installed.lean_environment(tmp_path_factory.mktemp("env"), wheel, extra, *more)
        return made[extra, *more]

    return make


@pytest.mark.parametrize(
    "extra", [pytest.param(each, marks=[] if each in (PLAIN, "cli") else pytest.mark.long) for each in (PLAIN, *EXTRAS)]
)
def test_what_an_extra_promises_can_be_imported(environment, extra):
    """With only the requirements of the metadata, every module that an extra promises can be imported."""
    assert install_probes.failed_imports(environment(extra), extra) == []


def test_jobs_bring_iceberg(environment):
    """The extra `jobs` installs Iceberg's jar for its Spark, without which no job can open its tables."""
    assert install_probes.jars_of_jobs(environment("jobs")).startswith("iceberg-spark-runtime-3.5_2.12-")


def test_the_plain_install_is_a_broker(environment):
    """`Broker()` accepts an event without any extra."""
    assert install_probes.newest_offset(environment(PLAIN)) == "0"


def test_the_plain_install_brings_the_fixture(environment):
    """If pytest is installed, the fixture `nakadi_broker` exists without any configuration."""
    assert "1 passed" in install_probes.fixture_outcome(environment(PLAIN, "pytest"))


def test_the_command_says_its_version_or_what_it_needs(environment):
    """`nakadi --version` works with the extra `cli`; elsewhere the command names this extra."""
    assert install_probes.report_version(environment("cli")) == (0, f"nakadi {__version__}")
    code, told = install_probes.report_version(environment(PLAIN))
    assert code == 2
    assert "pip install 'nakadi-serverless[cli]'" in told


@pytest.mark.long
def test_types_are_known_to_mypy(environment):
    """mypy reads the annotations of an installed package."""
    told = install_probes.report_types(sys.executable, environment(PLAIN))
    assert 'Revealed type is "str"' in told.replace("builtins.", ""), told
    assert "Success" in told


def test_the_wheel_has_everything_once(wheel):
    """The wheel has no file twice and nothing compiled, and each package in it says that it is typed."""
    with zipfile.ZipFile(wheel) as archive:
        files = [each for each in archive.infolist() if not each.is_dir()]
    names = {each.filename for each in files}
    large = [(each.CRC, each.file_size) for each in files if each.file_size > 1000]

    assert len(large) == len(set(large))
    assert not [name for name in names if name.endswith(".pyc")]
    assert {
        f"{each}/py.typed"
        for each in (
            "nakadi",
            "nakadi_cdk",
            "nakadi_cli",
            "nakadi_client",
            "nakadi_jobs",
            "nakadi_relay",
            "nakadi_spark",
            "nakadi_sql",
        )
    } <= names
