"""Settings of Spark that suit tests."""

import os
from unittest.mock import patch

import pyspark.rdd
import pytest

QUICK = {
    # For a few rows, compiling takes longer than working. The space for classes is large from the start, because it
    # would grow in many small steps, with a full garbage collection before each. The classes come from released jars,
    # so verifying their bytecode finds nothing.
    "JDK_JAVA_OPTIONS": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=128m "
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    ),
    "PYSPARK_SUBMIT_ARGS": (
        "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
        "--conf spark.sql.adaptive.enabled=false pyspark-shell"
    ),
}


@pytest.fixture(scope="session", autouse=True)
def quick_spark():
    """Switch off features of Spark that only pay for a lot of data, and close the sockets through which it passes
    results, which it forgets to close. Closing a socket early does no harm, because the file object that reads from it
    keeps it open.
    """
    connected = pyspark.rdd.local_connect_and_auth

    def closed(port, secret):
        file, connection = connected(port, secret)
        connection.close()
        return file, connection

    with patch.dict(os.environ, QUICK), patch("pyspark.rdd.local_connect_and_auth", closed):
        yield
