"""Spark writes, reads and joins the events of brokers whose log is in Kafka or Kinesis."""

import os
from contextlib import closing
from unittest.mock import patch
from uuid import uuid4

import httpx
import pytest

import nakadi_spark
from infra.laptop.laptop import Laptop
from nakadi_spark import Stores
from tests.spark.conftest import TWO
from tests.support import kafka
from tests.support.api import a_business_definition, create_event_type
from tests.support.jobs import open_reading_session
from tests.support.laptop import FAST_SETTINGS, OPEN, STREAM, STRICTNESS, TABLES, LaptopBroker
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker

pytestmark = pytest.mark.long(
    "tests/spark/test_reading.py::test_two_event_types_are_joined",
    "tests/spark/test_reading.py::test_several_event_types_are_read_together",
    "tests/spark/test_stores.py::test_stores_have_the_events_of_the_broker",
    "tests/spark/test_writing.py::test_each_row_becomes_an_event",
)

SCHEMA = {"properties": {"n": {"type": "integer"}}}


def on_kafka(folder):
    file = f"sqlite:///{folder / 'nakadi.db'}"
    places = {"registry": file, "event_log": kafka.url(), "log_index": file, "archive": str(folder / "archive")}
    with ServedBroker(**places) as broker:
        yield broker.url, Stores(**places)


def on_aws_local(folder):
    with Laptop(folder, FAST_SETTINGS, STRICTNESS) as laptop:
        front = laptop.front(authorizes=False, settings=OPEN)
        with closing(LaptopBroker(laptop, front)) as broker, patch.dict(os.environ, laptop.cloud.environment()):
            tables = f"{TABLES}&endpoint={laptop.cloud.endpoints['dynamodb']}"
            log = f"{STREAM}&endpoint={laptop.cloud.endpoints['kinesis']}"
            yield broker.url, Stores(registry=tables, event_log=log, log_index=tables)


@pytest.fixture(params=[on_kafka, on_aws_local], ids=["kafka", "aws-local"])
def places(request, tmp_path):
    """The URL of a broker, and its stores."""
    yield from request.param(tmp_path)


def numbers(frame):
    return sorted(row.n for row in frame.select("n").collect())


def test_events_are_written_read_and_joined(places, tmp_path):
    """Spark reads the rows that it wrote: from one event type, from several by a pattern, and from the stores; and it
    joins two event types. (K1, K5, K7, K12)
    """
    url, stores = places
    spark = open_reading_session(f"file://{tmp_path}/tables")
    shop = f"shop-{uuid4().hex}"
    with httpx.Client(base_url=url, timeout=PATIENCE) as api:
        for name in ("placed", "paid"):
            definition = a_business_definition(name=f"{shop}.{name}", schema=SCHEMA, default_statistic=TWO)
            create_event_type(api, definition)
    nakadi_spark.write(spark.range(10).selectExpr("id AS n"), url, f"{shop}.placed", key="n")
    nakadi_spark.write(spark.range(5, 15).selectExpr("id AS n"), url, f"{shop}.paid", key="n")
    placed, paid = (nakadi_spark.read(spark, url, f"{shop}.{name}", columns=["n"]) for name in ("placed", "paid"))
    assert (numbers(placed), numbers(paid)) == ([*range(10)], [*range(5, 15)])
    assert numbers(placed.join(paid, "n")) == [*range(5, 10)]
    both = nakadi_spark.read(spark, url, f"{shop}.*", columns=["n"])
    found = {row.nakadi_event_type: row["count"] for row in both.groupBy("nakadi_event_type").count().collect()}
    assert found == {f"{shop}.placed": 10, f"{shop}.paid": 10}
    with stores.open() as opened:
        event_type = opened.find(f"{shop}.placed")
        ranges = opened.plan(event_type)
        assert sum(len(piece) for each in ranges for piece in opened.read(event_type, each)) == 10
