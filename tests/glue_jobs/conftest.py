import os
from unittest.mock import patch

import pyspark.rdd
import pytest

from tests.support.jobs import DataFolder, Jobs


def pytest_collection_modifyitems(items):
    """All of them share one Spark, which takes long to start."""
    for item in items:
        if "/glue_jobs/" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session", autouse=True)
def quick_spark():
    """For a handful of rows, compiling takes longer than working."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    os.environ.setdefault(
        "PYSPARK_SUBMIT_ARGS",
        "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
        "--conf spark.sql.adaptive.enabled=false pyspark-shell",
    )


@pytest.fixture(scope="session", autouse=True)
def closed_sockets():
    """Spark forgets to close the socket through which it hands over results; its file has it open long enough."""
    connected = pyspark.rdd.local_connect_and_auth

    def closed(port, secret):
        file, connection = connected(port, secret)
        connection.close()
        return file, connection

    with patch("pyspark.rdd.local_connect_and_auth", closed):
        yield


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """Where all tests have their tables: a Spark's catalog is in one place."""
    return tmp_path_factory.mktemp("tables")


@pytest.fixture
def data(tmp_path):
    folder = DataFolder(tmp_path / "data")
    yield folder
    folder.close()


@pytest.fixture
def jobs(data, tables):
    return Jobs(data, tables)
