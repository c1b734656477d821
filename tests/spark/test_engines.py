"""Spark writes, reads and joins the events of brokers whose log is in Kafka or Kinesis."""

from uuid import uuid4

import pytest

import nakadi_spark
from tests.spark.conftest import TWO
from tests.support.api import a_business_definition, create_event_type
from tests.support.jobs import open_reading_session
from tests.support.spark_sources import spark_source

pytestmark = pytest.mark.long(
    "tests/spark/test_batches.py::test_a_batch_that_fails_comes_again_as_it_was",
    "tests/spark/test_reading.py::test_two_event_types_are_joined",
    "tests/spark/test_reading.py::test_several_event_types_are_read_together",
    "tests/spark/test_stores.py::test_stores_have_the_events_of_the_broker",
    "tests/spark/test_writing.py::test_each_row_becomes_an_event",
)

SCHEMA = {"properties": {"n": {"type": "integer"}}}


@pytest.fixture(params=["kafka", "aws-local"])
def source(request, tmp_path):
    with spark_source(request.param, tmp_path) as source:
        yield source


def numbers(frame):
    return sorted(row.n for row in frame.select("n").collect())


def test_events_are_written_read_and_joined(source, tmp_path):
    """Spark reads the rows that it wrote: from one event type, from several by a pattern, from the stores, and in
    batches of a limited size; and it joins two event types. (K1, K5, K7, K11, K12, K13)
    """
    url, spark = source.url, open_reading_session(f"file://{tmp_path}/tables")
    shop = f"shop-{uuid4().hex}"
    for name in ("placed", "paid"):
        definition = a_business_definition(name=f"{shop}.{name}", schema=SCHEMA, default_statistic=TWO)
        create_event_type(source.api, definition)
    nakadi_spark.write(spark.range(10).selectExpr("id AS n"), url, f"{shop}.placed", key="n")
    nakadi_spark.write(spark.range(5, 15).selectExpr("id AS n"), url, f"{shop}.paid", key="n")
    placed, paid = (nakadi_spark.read(spark, url, f"{shop}.{name}", columns=["n"]) for name in ("placed", "paid"))
    assert (numbers(placed), numbers(paid)) == ([*range(10)], [*range(5, 15)])
    assert numbers(placed.join(paid, "n")) == [*range(5, 10)]
    both = nakadi_spark.read(spark, url, f"{shop}.*", columns=["n"])
    found = {row.nakadi_event_type: row["count"] for row in both.groupBy("nakadi_event_type").count().collect()}
    assert found == {f"{shop}.placed": 10, f"{shop}.paid": 10}
    with source.stores.open() as opened:
        event_type = opened.find(f"{shop}.placed")
        ranges = opened.plan(event_type)
        assert sum(len(piece) for each in ranges for piece in opened.read(event_type, each)) == 10
        start, end = opened.first_offsets(event_type), opened.last_offsets(event_type)
        assert sum(opened.count_events(event_type, start, end).values()) == 10
    batches = []
    for more in (0, 5):
        nakadi_spark.write(spark.range(10, 10 + more).selectExpr("id AS n"), url, f"{shop}.placed", key="n")
        nakadi_spark.for_each_batch(
            spark,
            url,
            f"{shop}.placed",
            lambda rows, _: batches.append(numbers(rows)),
            tmp_path / "checkpoint",
            max_events=4,
        )
        assert sorted(n for batch in batches for n in batch) == [*range(10 + more)]
    assert max(map(len, batches)) <= 4
