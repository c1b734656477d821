"""A Spark that is fit for tests."""

import os
from unittest.mock import patch

import pyspark.rdd
import pytest

QUICK = {
    # For a handful of rows, compiling takes longer than working. Classes get their room at once: it would grow in many
    # small steps, with a full collection of garbage before each.
    "JDK_JAVA_OPTIONS": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=128m"
    ),
    "PYSPARK_SUBMIT_ARGS": (
        "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
        "--conf spark.sql.adaptive.enabled=false pyspark-shell"
    ),
}


@pytest.fixture(scope="session", autouse=True)
def quick_spark():
    """Spark without features that only pay with much data, and with its sockets closed.

    It forgets to close those through which it passes results; the file that it reads keeps them open long enough.
    """
    connected = pyspark.rdd.local_connect_and_auth

    def closed(port, secret):
        file, connection = connected(port, secret)
        connection.close()
        return file, connection

    with patch.dict(os.environ, QUICK), patch("pyspark.rdd.local_connect_and_auth", closed):
        yield
