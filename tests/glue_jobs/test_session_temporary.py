"""Where Spark keeps its temporary files."""

import os
from pathlib import Path


def test_spark_keeps_its_temporary_files_where_the_environment_says(jobs):
    """Java does not know `TMPDIR`, so the jobs pass it on: a killed job leaves files only there."""
    spark = jobs.spark()

    assert spark._jvm.java.lang.System.getProperty("java.io.tmpdir") == os.environ["TMPDIR"]
    local = spark._jvm.org.apache.spark.util.Utils.getLocalDir(spark._jsc.sc().conf())
    assert Path(os.environ["TMPDIR"]) in Path(local).parents
