"""How tests are dealt out to processes, how examples are chosen, and where the figures go that tests record."""

from __future__ import annotations

import gc
import os
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# The same examples each time, however long a busy machine takes for one of them.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# Every client of httpx reads the certificates of all authorities, which takes 20 ms of the processor, and thousands are
# made. No test goes to an authority's server: they are sent to a folder without any, with the processes of tests.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# The CDK keeps what it has unpacked below the home, and fails where nothing can be written there.
if not os.access(Path.home(), os.W_OK):
    os.environ["JSII_RUNTIME_PACKAGE_CACHE"] = "disabled"

# What takes long to begin is begun in few processes only: a Spark session in two, for its tests are a third of all the
# time, and in one the AWS shape, templates, several workers, a Kafka. What takes longest goes first; the second Spark
# begins when one of four ends, for two of them and the AWS shape at once would keep each other waiting.
TOGETHER = ("glue_jobs", "aws-local", "infra", "two-workers", "second-spark", "kafka")

# They go with the jobs, for the sake of their Spark.
WITH_SPARK = ("tests/docs/test_analytics.py", "tests/e2e/test_jobs.py")

# About as much as all others with Spark.
WITH_SECOND_SPARK = tuple(
    f"tests/glue_jobs/test_{name}.py" for name in ("erasure_bytes_left", "erasure", "killed", "published", "retention")
)


class ByFile(LoadScopeScheduling):
    """A process takes a whole file, for its tests share what they began."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first, so that no process works alone at the end."""
    items.sort(key=lambda item: TOGETHER.index(found) if (found := group(item.nodeid)) in TOGETHER else len(TOGETHER))


@pytest.fixture(scope="session", autouse=True)
def descriptions_of_services():
    """Clients of AWS share the descriptions of services. Each session of boto reads them anew otherwise, which takes
    most of the time of tests that make clients."""
    from botocore.loaders import JSONFileLoader  # noqa: PLC0415  # most tests do without it

    read = cache(JSONFileLoader().load_file)
    with patch.object(JSONFileLoader, "load_file", lambda _, path: read(path)):
        yield


def pytest_collection_finish() -> None:
    """What was collected stays until the end: it need not be looked through again and again for garbage."""
    gc.collect()
    gc.freeze()


def group(nodeid: str) -> str:
    """Which tests go to the same process."""
    file, _, name = nodeid.partition("::")
    folder = file.removeprefix("tests/").partition("/")[0]
    for engine in ("aws-local", "two-workers"):
        if folder == "e2e" and engine in name:
            return engine
    if folder in ("contracts", "e2e") and ("kafka" in name or "/test_kafka" in file):
        return "kafka"
    if file in WITH_SECOND_SPARK:
        return "second-spark"
    if file in WITH_SPARK:
        return "glue_jobs"
    return folder if folder in TOGETHER else file


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests counted: `record_property("figures", "acknowledged 7 found 7 lost 0")`."""
    figures = [
        f"{report.head_line}: {value}"
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "figures"
    ]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
