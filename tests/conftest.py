"""Distributes tests to processes, sets how many examples property tests have, and shows the figures that
tests record.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Generator
from functools import cache, partial
from itertools import compress
from operator import not_
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support import everything, group_ends, reports

# A busy machine may take long for an example. `make test` has the same examples each time. `make test-all` has twice as
# many, which follow from its new seed.
settings.register_profile(
    "tests",
    deadline=None,
    max_examples=everything.choose_by_suite(50, 100),
    derandomize=not everything.WANTED,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")

# Each httpx client reads the certificates of all authorities, which takes 20 ms of processor time, and tests create
# thousands of clients. No test connects to a server with a public certificate, so tests and their processes get an
# empty folder of certificates.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# The CDK keeps its unpacked files below the home folder, and fails if it cannot write there.
if not os.access(Path.home(), os.W_OK):
    os.environ["JSII_RUNTIME_PACKAGE_CACHE"] = "disabled"

# Each slow resource is started in one process: a Spark session, the deployment on this machine, templates, several
# workers, a Kafka, a browser, a PostgreSQL. The longest groups go first.
TOGETHER = ("glue_jobs", "aws-local", "aws-local subscriptions", "infra", "two-workers", "kafka", "console", "relay")

# These tests run in the process of the tests of jobs, because they share its Spark session.
WITH_SPARK = (
    "tests/docs/test_analytics.py",
    "tests/docs/test_spark.py",
    "tests/e2e/test_jobs.py",
    "tests/spark/",
    "tests/sql/test_tables.py",
)


class FileScheduling(LoadScopeScheduling):
    """Gives all tests of a file to one process, because they share resources."""

    def _split_scope(self, nodeid: str) -> str:
        return process_group_of_test(nodeid, splits_aws_local(self.config))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FileScheduling:
    return FileScheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(group_ends)
    if hasattr(config, "workerinput"):
        reports.report_less(config)
    else:
        make_temporary_folder(config)
    # A shell starts programs in the background with this signal ignored; tests interrupt commands with it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def make_temporary_folder(config: pytest.Config) -> None:
    """Let all processes of a run keep their temporary files in one folder, which is removed at its end. Processes that
    are killed leave files, and so does the CDK. `tmp_path` stays where it is, so that it can be looked at afterwards.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="nakadi-")
    Path(folder).chmod(0o1777)  # as of /tmp, because PostgreSQL runs under another account
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the random numbers of a test that has no own generator: they depend only on the run's seed and on the
    test.
    """
    random.seed(f"{everything.SEED} {item.nodeid}")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the resources of a group of tests together with the group. Otherwise, a Kafka and the deployment on this
    machine would keep a fifth of a processor busy until the end of the run.
    """
    splits = splits_aws_local(item.config)
    left = process_group_of_test(item.nodeid, splits)
    if left in TOGETHER and nextitem is not None and process_group_of_test(nextitem.nodeid, splits) != left:
        group_ends.finish_fixtures()
        group_ends.end_shared()


def pytest_report_header() -> str | None:
    """Say which seed repeats a run."""
    return f"random tests begin with seed {everything.SEED}: `make test-all SEED={everything.SEED}` repeats them"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that only `make test-all` runs. The longest groups go first, so that no process works alone at
    the end."""
    skipped = [everything.is_skipped(item) for item in items]
    config.hook.pytest_deselected(items=list(compress(items, skipped)))
    items[:] = compress(items, map(not_, skipped))
    splits = splits_aws_local(config)
    groups = [process_group_of_test(item.nodeid, splits) for item in items]
    order = {name: place for place, name in enumerate(TOGETHER)}
    places = sorted(range(len(items)), key=lambda place: order.get(groups[place], len(order)))
    items[:] = [items[place] for place in places]


@pytest.fixture(scope="session", autouse=True)
def descriptions_of_services():
    """Let AWS clients share the descriptions of services. Otherwise, each boto session reads them from disk, which
    takes most of the time of tests that create clients.
    """
    from botocore.loaders import JSONFileLoader  # noqa: PLC0415  # most tests do without it

    read = cache(JSONFileLoader().load_file)
    with patch.object(JSONFileLoader, "load_file", lambda _, path: read(path)):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while tests are collected: collecting them leaves no garbage, and looking for garbage
    would take a quarter of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: they stay until the end, and a single garbage collection
    takes a second in each process.
    """
    gc.freeze()


def splits_aws_local(config: pytest.Config) -> bool:
    """Whether each of two processes has its own deployment. Nearly half of the long tests need one, and wait most of
    the time. For the few in `make test`, a second start would take too long.
    """
    is_distributed = hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None)
    return bool(is_distributed) and (everything.WANTED or "long" in config.option.markexpr)


def process_group_of_test(nodeid: str, splits: bool = False) -> str:
    """The group of a test. All tests of a group run in the same process. With `splits`, two processes start the
    deployment.
    """
    file, _, name = nodeid.partition("::")
    folder = file.removeprefix("tests/").partition("/")[0]
    for engine in ("aws-local", "two-workers"):
        if folder == "e2e" and engine in name:
            is_apart = splits and engine == "aws-local" and file.startswith("tests/e2e/subscriptions/")
            return "aws-local subscriptions" if is_apart else engine
    if folder in ("contracts", "e2e") and ("kafka" in name or "/test_kafka" in file):
        return "kafka"
    if file.startswith(WITH_SPARK):
        return "glue_jobs"
    return folder if folder in TOGETHER else file


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that tests record, as in `record_property("figures", "acknowledged 7 found 7 lost 0")`."""
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
