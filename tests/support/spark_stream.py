"""A stream of Spark 4 that writes the numbers of events into an Iceberg table; a test may kill it.

python -m tests.support.spark_stream URL EVENT_TYPE FOLDER

It starts Spark, and waits for a line: `run` lets the stream run until it is killed, and `finish` until nothing is left;
then it writes all numbers in the table to `numbers.json` in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from nakadi_spark.data_source import NakadiDataSource

ICEBERG = Path(pyspark.__file__).parents[1] / "iceberg"
"""Where `make test-spark` puts the jar of Iceberg, if Maven is installed, and Iceberg knows this Spark."""

TABLE = "lake.events.numbers"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}


def open_spark4(tables: str = "") -> SparkSession:
    """Open a Spark that knows the data source; if `tables` names a folder, its Iceberg tables are the catalog
    `lake`.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**SETTINGS, **(_lake(tables) if tables else {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(NakadiDataSource)
    return spark


def _lake(tables: str) -> Mapping[str, str]:
    return {
        # Spark would copy `spark.jars` at each start, and a killed one would leave the copy behind.
        "spark.driver.extraClassPath": os.pathsep.join(map(str, ICEBERG.glob("*.jar"))),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": tables,
    }


def main(url: str, event_type: str, folder: str) -> None:
    spark = open_spark4(f"{folder}/tables")
    rows = spark.readStream.format("nakadi").options(url=url, event_type=event_type, columns="n").load()
    order = sys.stdin.readline().strip()
    spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} (n bigint) USING iceberg")
    query = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint").toTable(TABLE)
    if order == "run":
        query.awaitTermination()
    query.processAllAvailable()
    query.stop()
    numbers = sorted(row.n for row in spark.table(TABLE).collect())
    Path(folder, "numbers.json").write_text(json.dumps(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
