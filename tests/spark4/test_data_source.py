"""The data source `nakadi` of Spark 4, which reads and writes events: `make test-spark`."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, deque
from contextlib import closing, contextmanager
from unittest.mock import patch

import pyspark
import pytest
from msgspec.structs import asdict
from pyspark.errors import StreamingQueryException

import nakadi_spark
from nakadi_client import read
from tests.support.api import a_business_definition, create_event_type
from tests.support.environment import plain_environment
from tests.support.everything import SEED, choose_by_suite
from tests.support.patience import PATIENCE, until
from tests.support.spark_sources import ENGINES, KEYS, spark_source

pytest.importorskip("pyspark.sql.datasource", reason="Spark 4 is not here: make test-spark")
LIMITS_BATCHES = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
pytestmark = [
    pytest.mark.long,
    # Spark forgets to close the sockets through which it passes results.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

TWO = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 2, "write_parallelism": 2}
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "price": {"type": "number", "multipleOf": 0.01},
        "customer": {"type": "object", "properties": {"id": {"type": "string"}}},
        "texts": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
KILLS = int(os.environ.get("KILLS", choose_by_suite(3, 50)))
"""On a busy machine, 50 take longer than a test may: add `-o faulthandler_timeout=0`."""

AHEAD = 2
"""This many further streams start while one runs."""


class Orders:
    """An event type of two partitions, and a publisher of numbered events."""

    def __init__(self, api, url, **changes):
        definition = a_business_definition(schema=SCHEMA, default_statistic=TWO, **changes)
        self.name = create_event_type(api, definition)["name"]
        self.url, self.count = url, 0
        self._api, self._definition = api, definition

    def change_schema(self, **properties):
        schema = json.dumps(SCHEMA | {"properties": SCHEMA["properties"] | properties})
        changed = self._definition | {"schema": {"type": "json_schema", "schema": schema}}
        answer = self._api.put(f"/event-types/{self.name}", json=changed)
        assert answer.status_code == 200, answer.text

    def publish(self, count, price=1.25):
        events = [
            {
                "n": n,
                "price": price,
                "customer": {"id": f"c{n % 3}"},
                "texts": {"a": "b"},
                "metadata": {"eid": f"00000000-0000-4000-8000-{n:012d}", "occurred_at": "2026-11-20T10:00:00Z"},
            }
            for n in range(self.count, self.count + count)
        ]
        self.count += count
        assert self._api.post(f"/event-types/{self.name}/events", json=events).status_code == 200

    def read_events(self):
        """Return all events of the event type."""
        return [event for batch in read(self.url, self.name, start="begin", follow=False) for event in batch.events]


@pytest.fixture(scope="module")
def make_orders(tmp_path_factory):
    with spark_source("sqlite", tmp_path_factory.mktemp("data")) as source:
        yield lambda **changes: Orders(source.api, source.url, **changes)


@pytest.fixture(scope="module")
def spark():
    from tests.support.spark_stream import open_spark4  # noqa: PLC0415  # it needs Spark 4

    # Spark starts other processes with its own variables.
    with patch.dict(os.environ, KEYS):
        spark = open_spark4()
    yield spark
    spark.stop()


def test_a_dataframe_has_each_event_once(spark, make_orders):
    """`format("nakadi")` reads the events of the log, with the columns of the event type, or with some of them.
    (K9)
    """
    orders = make_orders()
    orders.publish(20)
    source = spark.read.format("nakadi").options(url=orders.url, event_type=orders.name)
    rows = [row.asDict(recursive=True) for row in source.load().orderBy("n").collect()]
    assert [row["n"] for row in rows] == [*range(20)]
    assert str(rows[4]["price"]) == "1.25"
    assert (rows[4]["customer"], rows[4]["texts"]) == ({"id": "c1"}, {"a": "b"})
    some = source.option("columns", "customer, n").load()
    assert some.columns == ["customer", "n"]
    assert some.where("customer.id = 'c1'").count() == 7
    assert source.option("from", "2999-01-01T00:00:00Z").load().count() == 0


def test_functions_that_need_no_source_work_too(spark, make_orders, tmp_path):
    """`read`, `write` and `for_each_batch` work on Spark 4, as on Spark 3.5. (K1, K7, K11)"""
    orders, copies = make_orders(), make_orders()
    orders.publish(8)
    rows = nakadi_spark.read(spark, orders.url, orders.name, columns=["n", "customer"])
    assert sorted(row.n for row in rows.where("customer.id = 'c1'").collect()) == [1, 4, 7]
    nakadi_spark.write(rows, orders.url, copies.name)
    sizes = []
    nakadi_spark.for_each_batch(
        spark, orders.url, copies.name, lambda rows, _: sizes.append(rows.count()), tmp_path, max_events=5
    )
    assert (sum(sizes), len(sizes)) == (8, 2)


def test_bad_options_are_named(spark, make_orders):
    """A missing option, an invalid time, an unknown column and an unknown event type are refused, and the message names
    them. (K9)
    """
    orders = make_orders()
    for options, message in (
        ({}, "The option event_type is missing"),
        ({"event_type": "no.such"}, "There is no event type no.such"),
        ({"event_type": orders.name, "columns": "m"}, "has no column m"),
        ({"event_type": orders.name, "from": "noon"}, "no time such as"),
        ({"event_type": orders.name, "max_events": "few"}, "no number of events"),
    ):
        with pytest.raises(Exception, match=message):
            spark.read.format("nakadi").options(url=orders.url, **options).load()


def test_rows_are_published(spark, make_orders):
    """`format("nakadi")` writes DataFrames: each row becomes an event. Existing events are not replaced. (K7)"""
    orders = make_orders()
    frame = spark.range(10).selectExpr("id AS n", "named_struct('id', 'c') AS customer")
    frame.write.format("nakadi").options(url=orders.url, event_type=orders.name, key="customer.id").mode(
        "append"
    ).save()
    assert sorted(event["n"] for event in orders.read_events()) == [*range(10)]
    with pytest.raises(Exception, match="append"):
        frame.write.format("nakadi").options(url=orders.url, event_type=orders.name).mode("overwrite").save()


def test_a_property_of_several_types_has_a_column_for_each(spark, make_orders, tmp_path):
    """If a later schema gives a property another type, each column has the values that fit, in DataFrames and streams.
    (K9, K10)
    """
    orders = make_orders(compatibility_mode="none")
    orders.publish(1)
    orders.change_schema(price={"type": "string"})
    orders.publish(1, price="free")
    source = spark.readStream.format("nakadi").options(url=orders.url, event_type=orders.name)
    both = source.option("columns", "price, price__string").load()
    query = both.writeStream.format("parquet").option("path", str(tmp_path / "found"))
    run_to_end(query.option("checkpointLocation", str(tmp_path / "checkpoint")))
    batch = spark.read.format("nakadi").options(url=orders.url, event_type=orders.name).load()
    for rows in (spark.read.parquet(str(tmp_path / "found")), batch):
        found = {(str(row.price), row.price__string) for row in rows.collect()}
        assert found == {("1.25", "1.25"), ("None", "free")}


def test_a_batch_of_a_stream_is_published_once(spark, make_orders, tmp_path):
    """If Spark repeats a batch, because it was killed before it noted the end, its events have the same `eid`s: if the
    event type deduplicates, each is stored once. (K8)
    """
    orders, copies = make_orders(), make_orders(deduplication={"window_seconds": 300})
    orders.publish(10)

    copy(spark, orders, copies, tmp_path)
    for note in (tmp_path / "commits").glob("*0*"):
        note.unlink()
    copy(spark, orders, copies, tmp_path)
    assert sorted(event["n"] for event in copies.read_events()) == [*range(10)]


def copy(spark, orders, copies, checkpoint):
    """Let a stream publish the numbers of all orders that it has not published before."""
    rows = spark.readStream.format("nakadi").options(url=orders.url, event_type=orders.name, columns="n").load()
    sink = rows.writeStream.format("nakadi").options(url=copies.url, event_type=copies.name)
    run_to_end(sink.option("checkpointLocation", str(checkpoint)))


def run_to_end(stream):
    """Run a stream until nothing is left. Spark gives a Python that it starts ten seconds, which a busy machine may
    exceed; then the stream begins again at its checkpoint.
    """
    for attempts_left in (4, 3, 2, 1, 0):
        query = stream.start()
        try:
            query.processAllAvailable()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or not attempts_left:
                raise
        else:
            return
        finally:
            query.stop()


@pytest.mark.parametrize("engine", ["kafka", "aws-local"])
def test_each_event_is_read_and_written_once_on_each_engine(spark, engine, tmp_path):
    """With a log in Kafka or Kinesis, too, a DataFrame has the events of the log or of the stores, and a stream goes on
    at its checkpoint, and publishes each event once. (K7, K8, K9, K10, K12)
    """
    with spark_source(engine, tmp_path / "data") as source:
        orders = Orders(source.api, source.url)
        copies = Orders(source.api, source.url, deduplication={"window_seconds": 300})
        orders.publish(20)
        stores = {name: value for name, value in asdict(source.stores).items() if value}
        for place in ({"url": source.url}, stores):
            rows = spark.read.format("nakadi").options(event_type=orders.name, columns="n", **place).load()
            assert sorted(row.n for row in rows.collect()) == [*range(20)]
        copy(spark, orders, copies, tmp_path / "checkpoint")
        orders.publish(5)
        copy(spark, orders, copies, tmp_path / "checkpoint")
        assert sorted(event["n"] for event in copies.read_events()) == [*range(25)]


@pytest.mark.skipif(not LIMITS_BATCHES, reason="Before 4.2, Spark does not limit batches")
def test_a_batch_of_a_stream_has_no_more_events_than_allowed(spark, make_orders, tmp_path):
    """`max_events` limits each batch, also after a restart. If Spark wants only what is available now, the stream ends
    there. (K13)
    """
    orders = make_orders()
    source = spark.readStream.format("nakadi").options(url=orders.url, event_type=orders.name, columns="n")
    found = []

    def handle(rows, _):
        found.append([row.n for row in rows.collect()])
        orders.publish(1)  # too late for this run

    for count in (12, 7):
        orders.publish(count)
        available = orders.count
        writer = source.option("max_events", "5").load().writeStream.foreachBatch(handle)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(5 * PATIENCE)
        assert sorted(n for batch in found for n in batch) == [*range(available)]
    assert max(map(len, found)) <= 5


@pytest.mark.skipif(LIMITS_BATCHES, reason="From 4.2 on, Spark limits batches")
def test_an_older_spark_refuses_to_limit_batches(spark, make_orders):
    """Before 4.2, Spark cannot limit batches, and `max_events` is refused. (K13)"""
    orders = make_orders()
    source = spark.readStream.format("nakadi").options(url=orders.url, event_type=orders.name, max_events=5)
    with pytest.raises(Exception, match=r"max_events needs Spark 4\.2"):
        source.load().writeStream.format("noop").start().processAllAvailable()


class Streams:
    """Streams in processes, each of which starts before its turn, because Java and Spark take long to start."""

    def __init__(self, orders, folder):
        java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={folder}"
        self._environment = plain_environment(PYTHONPATH=os.pathsep.join(sys.path), JDK_JAVA_OPTIONS=java)
        self._command = [sys.executable, "-m", "tests.support.spark_stream", orders.url, orders.name, str(folder)]
        self.folder = folder
        self._log = folder / "log"
        self._started = deque()

    @contextmanager
    def begin(self, order):
        """Let the next stream begin, and kill it at the end of the block."""
        while len(self._started) <= AHEAD:
            self._started.append(self._start())
        process = self._started.popleft()
        process.stdin.write(f"{order}\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            end(process)

    def _start(self):
        with self._log.open("a") as log:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def output(self):
        return self._log.read_text()[-5000:]

    def close(self):
        for process in self._started:
            end(process)


def end(process):
    with process:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_stream_goes_on_at_its_checkpoint(engine, tmp_path, record_property):
    """A stream that is killed again and again, at any moment of a batch, writes each event once to an Iceberg table:
    its offsets are cursors, and Iceberg takes a repeated batch once. (K10)
    """
    from tests.support.spark_stream import ICEBERG  # noqa: PLC0415  # it needs Spark 4

    if not any(ICEBERG.glob("*.jar")):
        pytest.skip("Iceberg for this Spark is not here: make test-spark, with Maven")
    drawn = random.Random(SEED)
    hits = Counter()
    with spark_source(engine, tmp_path / "data") as source:
        orders = Orders(source.api, source.url)
        with closing(Streams(orders, tmp_path)) as streams:
            for _ in range(KILLS):
                run_until_killed(streams, orders, drawn)
                hits[moment_of_kill(tmp_path)] += 1
            with streams.begin("finish") as process:
                assert process.wait(10 * PATIENCE) == 0, streams.output()
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert found == [*range(orders.count)]
    moments = ", ".join(f"{count} {moment}" for moment, count in sorted(hits.items()))
    record_property("figures", f"kills {KILLS} ({moments}) events {orders.count} lost 0 doubled 0")


def run_until_killed(streams, orders, drawn):
    """Run a stream, and kill it at a random moment of a batch, or in the short time between the table's commit and
    Spark's record of it.
    """
    steps, delay = drawn.choice((("checkpoint/*/*[0-9]", 1), ("tables/*/*/metadata/v*.json", 0)))

    def done():
        return len([*streams.folder.glob(steps)])

    orders.publish(20)
    before = done()
    with streams.begin("run") as process:
        until(lambda: done() > before or process.poll() is not None, 5 * PATIENCE)
        assert process.poll() is None, streams.output()
        if delay:
            orders.publish(5)
            # A batch ends in less time, so a kill can come at any moment of this batch or the next.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(drawn.uniform(0, delay))


def moment_of_kill(folder):
    """What a stream that was killed had done."""

    def last(names):
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    begun, ended = (
        last(each.name for each in (folder / "checkpoint").glob(f"{kind}/*")) for kind in ("offsets", "commits")
    )
    states = sorted(
        (folder / "tables").glob("*/*/metadata/v*.json"), key=lambda state: int(state.name[1:].split(".")[0])
    )
    snapshots = json.loads(states[-1].read_text())["snapshots"] if states else []
    in_table = last(each["summary"].get("spark.sql.streaming.epochId", "") for each in snapshots)
    if begun == ended:
        return "between batches"
    return "between commit and note" if in_table == begun else "in a batch"
