"""Builds the wheel, and installs it as users do: into environments with only the requirements of its metadata.
`lean_environment` links distributions from the environment of the tests, so it downloads nothing, and a forgotten
requirement is missing.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import Distribution, PathDistribution, distribution, distributions
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.environment import plain_environment
from tests.support.functions import ROOT

NAME = "nakadi-serverless"
PLAIN = ""
EXTRAS = ("local", "aws", "cdk", "kafka", "jobs", "cli", "lineage", "otel", "relay", "spark", "sql")

# The packages of each extra; tests import all of their modules.
PROMISES = {
    PLAIN: ("nakadi",),
    "local": ("nakadi.local",),
    "aws": ("nakadi",),
    "cdk": ("nakadi_cdk",),
    "kafka": ("nakadi.engines.kafka",),
    "jobs": ("nakadi_jobs",),
    "cli": ("nakadi_cli", "nakadi_client"),
    "lineage": ("nakadi",),
    "otel": ("nakadi.app",),
    "relay": ("nakadi_relay",),
    "spark": ("nakadi_spark",),
    "sql": ("nakadi_sql",),
}

NEEDS_AWS = (
    "nakadi.app.functions",
    "nakadi.app.log_indexer",
    "nakadi.delivery.aws_clients",
    "nakadi.engines.common.aws_sessions",
    "nakadi.engines.common.kms_box",
    "nakadi.engines.common.msk_tokens",
    "nakadi.engines.dynamodb",
    "nakadi.engines.kinesis",
    "nakadi.local.stage_backups",
)
NEEDS_KAFKA = ("nakadi.engines.kafka",)
# This module imports the jobs, whose packages come with another extra.
NEEDS_LINEAGE = ("nakadi_jobs.lineage",)
NEEDS_OTEL = ("nakadi.app.open_telemetry",)
# Python data sources came with Spark 4.
NEEDS_SPARK_4 = ("nakadi_spark.data_source",)
# Only pytest imports this module; it finds the module in the metadata.
NEEDS_PYTEST = ("nakadi.local.pytest_plugin",)


def find_unpromised_modules(extra: str) -> tuple[str, ...]:
    """Prefixes of the modules whose packages come with another extra."""
    needs = {"aws": NEEDS_AWS, "kafka": NEEDS_KAFKA, "lineage": NEEDS_LINEAGE, "otel": NEEDS_OTEL}
    return (
        *NEEDS_PYTEST,
        *NEEDS_SPARK_4,
        *(module for owner, modules in needs.items() if owner != extra for module in modules),
    )


def build_distribution(kind: str, of: Path, into: Path) -> Path:
    """Build the `wheel` or `sdist` of a checkout or of a source distribution."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(command, cwd=of, env=plain_environment(), check=True, capture_output=True)
    [built] = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def build_wheel(into: Path) -> Path:
    return build_distribution("wheel", ROOT, into)


def lean_environment(folder: Path, wheel: Path, extra: str = PLAIN, *more: str) -> Path:
    """Create a virtual environment with the wheel, its requirements, and the requirements of `more`, and return its
    Python.
    """
    venv.EnvBuilder(symlinks=True).create(folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    [info] = site.glob("nakadi_serverless-*.dist-info")
    wanted = [*read_requirements(PathDistribution(info), extra), *map(Requirement, more)]
    for each in required_distributions(wanted):
        link_distribution(each, site)
    return folder / "bin" / "python"


def read_requirements(found: Distribution, *extras: str) -> Iterator[Requirement]:
    """The requirements of a distribution on this machine, with these extras."""
    for line in found.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            yield requirement


def required_distributions(requirements: Iterable[Requirement]) -> Iterator[Distribution]:
    """The installed distributions that these requirements need, directly or through others."""
    waiting = list(requirements)
    seen: set[tuple[str, frozenset[str]]] = set()
    named: set[str] = set()
    while waiting:
        each = waiting.pop()
        name, extras = canonicalize_name(each.name), frozenset(each.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found = distribution(name)
        assert each.specifier.contains(found.version, prereleases=True), f"{found.version} does not fit {each}"
        waiting += read_requirements(found, "", *extras)
        if name not in named:
            named.add(name)
            yield found


def link_distribution(found: Distribution, site: Path) -> None:
    """Link a distribution into another environment. If several share a folder, such as `aws_cdk`, link only its own
    parts of it.
    """
    for entry in top_level_paths(found):
        parts = (
            entry.parts[:2] if count_shared_files()[entry.parts[0]] > 1 and len(entry.parts) > 1 else entry.parts[:1]
        )
        target = site.joinpath(*parts)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(str(found.locate_file(PurePosixPath(*parts)))))


@cache
def count_shared_files() -> Counter[str]:
    """For each folder, the number of distributions with files in it."""
    return Counter(top for each in distributions() for top in {entry.parts[0] for entry in top_level_paths(each)})


def top_level_paths(found: Distribution) -> Iterator[PurePosixPath]:
    """The first two parts of the path of each file, without programs and compiled modules."""
    if found.read_text("RECORD") is None:
        # Without `wheel`, older versions of pip install pyspark without a list of its files.
        assert isinstance(found, PathDistribution)
        names = [Path(str(found._path)).name, *(found.read_text("top_level.txt") or "").split()]
        paths = {PurePosixPath(each) for each in names if Path(str(found.locate_file(each))).exists()}
    else:
        paths = {PurePosixPath(*each.parts[:2]) for each in found.files or ()}
    return (
        each for each in sorted(paths) if each.parts[0] not in ("..", "__pycache__") and "__pycache__" not in each.parts
    )
