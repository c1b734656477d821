"""Lets the Spark of the tests read and write buckets, as Spark on Glue does. No package on PyPI has jars for that, so
Spark's own compiler compiles `S3Files.java`, which talks to S3 by HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from infra.laptop.roles import OWNER
from tests.support.aws import REGION

SOURCE = Path(__file__).with_name("S3Files.java")
# The owner of the emulated AWS, which may do everything even if roles are enforced.
AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={OWNER}/20261121/{REGION}/s3/aws4_request, SignedHeaders=host, Signature=0"
)


@contextmanager
def buckets_in_spark(spark: SparkSession, endpoint: str, bucket: str) -> Iterator[None]:
    """Inside the block, Spark can read and write `s3://bucket/...`."""
    jvm = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text())
    configuration = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    configuration.setClassLoader(compiler.getClassLoader())
    for name, value in (
        ("fs.s3.impl", "nakadi.S3Files"),
        ("nakadi.s3.endpoint", endpoint),
        ("nakadi.s3.authorization", AUTHORIZATION),
    ):
        configuration.set(name, value)
    # Hadoop caches the file system by the name of the bucket, for all later callers.
    files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI.create(f"s3://{bucket}"), configuration)
    try:
        yield
    finally:
        files.close()
