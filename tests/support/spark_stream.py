"""A stream of Spark 4 from a broker into Parquet files, in a process that a test kills.

python -m tests.support.spark_stream URL EVENT_TYPE FOLDER           runs until it is killed
python -m tests.support.spark_stream URL EVENT_TYPE FOLDER finish    ends when nothing is left, and prints all numbers
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from nakadi_spark.data_source import NakadiDataSource

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


def open_spark4() -> SparkSession:
    """A Spark that knows the source."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(NakadiDataSource)
    return spark


def main(url: str, event_type: str, folder: str, *finish: str) -> None:
    spark = open_spark4()
    rows = spark.readStream.format("nakadi").options(url=url, event_type=event_type, columns="n").load()
    sink = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = sink.start(f"{folder}/rows")
    if not finish:
        query.awaitTermination()
    query.processAllAvailable()
    query.stop()
    numbers = sorted(row.n for row in spark.read.parquet(f"{folder}/rows").collect())
    Path(folder, "numbers.json").write_text(json.dumps(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
