"""Jobs whose driver and executors are different processes, which are killed.

Every event is in the tables once, with its values, and no file is left that no table knows.
"""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.laptop.roles import write_roles
from tests.support.bytes_left import find_files_with_text, list_files_in
from tests.support.dynamodb_service import CREDENTIALS, PREFIX, a_bucket
from tests.support.jobs import DataFolder, Jobs, open_reading_session, order
from tests.support.patience import until
from tests.support.s3_files import buckets_in_spark
from tests.support.spark_cluster import cluster_in_driver, open_cluster

NAME = "customer-4711-of-the-long-name"
ERASE_NAME = ("--do", "erase", "--event-type", "order.placed", "--path", "customer.id", "--value", NAME)
LATELY = datetime.now(UTC) - timedelta(minutes=10)

ALL_OF_S3 = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
ROWS = f"arn:aws:s3:::{PREFIX}/tables/*/data/*"
DRIVER_POLICY = [ALL_OF_S3, {"Effect": "Deny", "Action": "s3:PutObject", "Resource": ROWS}]
EXECUTOR_POLICY = [
    {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{PREFIX}/log/*"},
    {"Effect": "Allow", "Action": "s3:PutObject", "Resource": ROWS},
]

COLUMNS = ("nakadi_partition", "nakadi_offset", "order_number", "total", "customer.id", "items[0].sku")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with open_cluster(tmp_path_factory.mktemp("cluster"), cores=1) as found:
        yield found


class Orders:
    """Events in the archive, each in a separate object, and the rows that they must become."""

    def __init__(self, data, jobs, tables):
        self.data, self.jobs = data, jobs
        self.folder = tables / jobs.database / "order_placed"
        self.event_type = data.event_type("order.placed", partitions=2)
        self.expected = {}
        self.archived = 0

    def archive(self, count, *, name=None):
        """Archive `count` events. Every fifth has a number that only Spark reads exactly, and some have the name
        `name`.
        """
        for number in range(count):
            offset, partition = divmod(self.archived, 2)
            event = order(self.archived)
            self.archived += 1
            if number % 5 == 4:
                event["total"] = 1e30
            if name and number % 3 == 1:
                event["customer"] = {"id": name}
            self.data.archive_events(self.event_type, [event], partition=partition, at=LATELY)
            values = (event["order_number"], event["total"], event["customer"]["id"], event["items"][0]["sku"])
            self.expected[partition, offset] = values

    def erase(self, name):
        self.expected = {place: values for place, values in self.expected.items() if values[2] != name}

    def check(self):
        """Check that every event is there once, and that every data file belongs to a table."""
        self.check_rows()
        assert self.lost_files() == set()

    def check_rows(self):
        assert self.jobs.rows("order_placed", *COLUMNS) == sorted((*at, *each) for at, each in self.expected.items())

    def lost_files(self):
        table = self.jobs.spark().table(f"nakadi.{self.jobs.database}.order_placed.all_data_files")
        known = {Path(urlsplit(row["file_path"]).path) for row in table.select("file_path").collect()}
        written = {path for path in self.folder.glob("data/**/*") if path.is_file() and not path.name.startswith(".")}
        return written - known

    def files_with(self, name):
        return find_files_with_text(name, {**list_files_in(self.data.folder), **list_files_in(self.folder)})


@pytest.fixture
def orders(data, jobs, tables):
    return Orders(data, jobs, tables)


def test_jobs_run_in_executors(cluster, orders, jobs):
    """The files, counts and erasures of several executors are the same as those of one process."""
    with cluster.driver("--little") as driver:
        orders.archive(4, name=NAME)
        found = driver.run("compaction", *jobs.places, "--no-tidying")
        assert (found.code, found.tasks >= 2) == (0, True), found
        orders.check()

        orders.archive(6)
        found = driver.run("follow", *jobs.places, "--no-tidying", "--until-idle")
        assert (found.code, found.tasks >= 2) == (0, True), found
        orders.check()

        found = driver.run("statistics", *jobs.places, "--hours", "24")
        assert (found.code, found.tasks > 0) == (0, True), found
        assert jobs.table("nakadi__statistics").selectExpr("sum(events)").first()[0] == len(orders.expected)

        found = driver.run("retention", *jobs.places, *ERASE_NAME)
        assert (found.code, found.tasks >= 2, "verified" in found.told) == (0, True, True), found
        found = driver.run("retention", *jobs.places, "--grace-hours", "0")
        assert found.code == 0, found
        orders.erase(NAME)
        orders.check()
        assert orders.files_with(NAME) == []


@pytest.mark.long("tests/glue_jobs/test_cluster.py::test_jobs_run_in_executors")
def test_an_executor_reads_and_writes_a_bucket_with_its_own_keys(tmp_path, tables, monkeypatch):
    """An executor reads the archive in S3, and writes the files of a table there, with the keys of its own environment:
    the driver's keys do not permit that.
    """
    roles = tmp_path / "roles.json"
    write_roles({"driver": DRIVER_POLICY, "executor": EXECUTOR_POLICY, "nobody": [ALL_OF_S3]}, roles)
    with a_bucket(str(roles)) as (url, _), closing(DataFolder(tmp_path / "data", url)) as data:
        [endpoint] = parse_qs(urlsplit(url).query)["endpoint"]
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        jobs = Jobs(data, f"s3://{PREFIX}/tables")
        orders = Orders(data, jobs, tables)
        orders.archive(4)
        executor = CREDENTIALS | {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "executor"}
        cluster = cluster_in_driver(tmp_path / "cluster")
        with cluster.driver(
            *("--little", "--bucket", PREFIX),
            variables=executor | {"AWS_ACCESS_KEY_ID": "driver"},
            **{f"spark.executorEnv.{name}": value for name, value in executor.items()},
        ) as driver:
            found = driver.run("compaction", *jobs.places, "--no-tidying", "--no-quality")
        assert (found.code, found.tasks >= 1) == (0, True), found
        with buckets_in_spark(open_reading_session(str(tables)), endpoint, PREFIX):
            orders.check_rows()


@pytest.mark.long
def test_executors_are_killed(cluster, orders, jobs, tmp_path):
    """An executor is killed in the middle of a file, and when a file is complete but the driver does not know it yet.
    The tasks are repeated, and the files of the killed executors are removed at the end.
    """
    with cluster.driver("--little") as driver:
        for fault, job, *arguments in (
            ("kill in file", "compaction"),
            ("kill after file", "compaction"),
            ("kill after file", "follow", "--until-idle"),
        ):
            orders.archive(8)
            marks = tmp_path / f"{fault} of {job}"
            marks.mkdir()
            found = driver.run(job, *jobs.places, "--no-tidying", *arguments, fault=fault, marks=marks)
            assert found.code == 0, found
            assert (marks / fault).exists()
            orders.check()


@pytest.mark.long
def test_a_driver_is_killed(cluster, orders, jobs, tmp_path):
    """An erasure finds the files of a killed driver at once, and the next run adds every event once."""
    orders.archive(6, name=NAME)
    with cluster.driver("--little") as driver:
        driver.begin("compaction", *jobs.places, "--no-tidying", fault="wait after file", marks=tmp_path)
        until((tmp_path / "wait after file").exists)
        driver.kill()
        until(lambda: not cluster.executors())
    left = orders.lost_files()
    assert any(path.suffix == ".parquet" for path in left)

    found = jobs.drop_before(*ERASE_NAME)
    assert (found.code, "verified" in found.told) == (0, True), found.told
    assert not any(path.exists() for path in left)
    orders.erase(NAME)
    assert jobs.compact().code == 0
    orders.check()


@pytest.mark.long
def test_slow_tasks_run_twice(cluster, orders, jobs, tmp_path):
    """With speculation, a task that hangs runs elsewhere too, and only one of its files stays."""
    orders.archive(12)
    speculation = {"spark.speculation": "true", "spark.speculation.quantile": "0.1"}
    with cluster.driver("--little", **speculation) as driver:
        arguments = ("--no-tidying",)
        found = driver.run("compaction", *jobs.places, *arguments, fault="wait after file", marks=tmp_path)
    assert found.code == 0, found
    assert (tmp_path / "wait after file").exists()
    orders.check()


@pytest.mark.long
def test_two_drivers_at_once(cluster, orders, jobs):
    """If two drivers run at the same time, each event is in the table once, whichever adds it."""
    orders.archive(12)
    half = {"spark.cores.max": "1"}
    with cluster.driver("--little", **half) as one, cluster.driver("--little", **half) as other:
        for driver in (one, other):
            driver.begin("compaction", *jobs.places, "--no-tidying")
        found = [driver.finish() for driver in (one, other)]
    assert [each.code for each in found] == [0, 0], found
    orders.check()
