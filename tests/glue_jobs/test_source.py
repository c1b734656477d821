"""Events as DataFrames of Spark, over HTTP."""

import json
import runpy
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread

import httpx
import pytest

from nakadi.local import Broker
from nakadi_jobs.session import open_spark
from nakadi_jobs.source import Range, ReadFailed, for_each_batch, read_events, read_range
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
DEFINITION = json.loads((ROOT / "events/event_types/order.placed.json").read_text())
[ORDER, *_] = json.loads((ROOT / "events/batches/order.placed/three-orders.json").read_text())


class Orders:
    """A broker with an event type of two partitions, and publishers."""

    def __init__(self, url, api):
        self.url = url
        self._api = api
        self._next = 0
        statistic = DEFINITION["default_statistic"] | {"read_parallelism": 2, "write_parallelism": 2}
        assert api.post("/event-types", json=DEFINITION | {"default_statistic": statistic}).status_code == 201

    def publish(self, count):
        """Publish orders, and return their numbers."""
        numbers = [f"o-{number}" for number in range(self._next, self._next + count)]
        self._next += count
        # More digits than a float has arrive unchanged.
        text = json.dumps([ORDER | {"order_number": number, "total": "TOTAL"} for number in numbers])
        body = text.replace('"TOTAL"', '{"amount": 0.10000000000000000001, "currency": "EUR"}')
        headers = {"Content-Type": "application/json"}
        assert self._api.post("/event-types/order.placed/events", content=body, headers=headers).status_code == 200
        return numbers


@pytest.fixture
def orders():
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        yield Orders(broker.url, api)


@pytest.fixture(scope="module")
def spark(tables):
    return open_spark("source", f"file://{tables}", "hadoop", "local[2]", "1g")


def numbers_in(rows):
    return sorted(json.loads(row["event"])["order_number"] for row in rows.collect())


def test_a_read_has_what_was_there_and_the_next_one_what_came_since(spark, orders):
    """Each event is in one read, and a read is the same when Spark computes it again after others were published."""
    assert read_events(spark, orders.url, "order.placed").rows.count() == 0
    first = orders.publish(9)
    read = read_events(spark, orders.url, "order.placed")
    second = orders.publish(4)

    rows = read.rows.collect()
    assert sorted(json.loads(row["event"])["order_number"] for row in rows) == sorted(first)
    assert all('"amount":0.10000000000000000001' in row["event"].replace(" ", "") for row in rows)
    assert {row["partition"]: row["offset"] for row in sorted(rows, key=lambda row: row["offset"])} == read.cursors
    later = read_events(spark, orders.url, "order.placed", after=read.cursors)
    assert numbers_in(later.rows) == sorted(second)
    assert read_events(spark, orders.url, "order.placed", after=later.cursors).rows.count() == 0
    with pytest.raises(ReadFailed, match="404"):
        read_events(spark, orders.url, "order.lost")


def test_a_batch_that_fails_comes_again_as_it_was(spark, orders, tmp_path):
    """The content of a batch is known before it is handled: after a failure it comes with its number and its events."""
    seen = []

    def handle(rows, batch):
        seen.append((batch, numbers_in(rows)))
        if len(seen) == 1:
            raise ZeroDivisionError

    first = sorted(orders.publish(3))
    with pytest.raises(ZeroDivisionError):
        for_each_batch(spark, orders.url, "order.placed", handle, tmp_path)
    second = sorted(orders.publish(2))
    for_each_batch(spark, orders.url, "order.placed", handle, tmp_path)

    assert seen == [(0, first), (0, first), (1, second)]


def test_the_example_runs(orders, tmp_path, monkeypatch):
    """docs/examples/spark_source.py reads the published events, and writes them once."""
    monkeypatch.setenv("NAKADI_URL", orders.url)
    monkeypatch.setenv("EXAMPLE_FOLDER", str(tmp_path))
    numbers = orders.publish(3)
    with redirect_stdout(StringIO()) as shown:
        made = runpy.run_path(str(ROOT / "docs/examples/spark_source.py"))

    assert all(number in shown.getvalue() for number in numbers)
    assert "0 new events" in shown.getvalue()
    assert made["written"].count() == 3


class Cutting(BaseHTTPRequestHandler):
    """Answers streams with scripted lines, and ends each of them."""

    def do_GET(self):
        self.server.asked.append(json.loads(self.headers["X-Nakadi-Cursors"])[0]["offset"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.answers.pop(0))

    def log_message(self, *_):
        pass


def lines(*offsets):
    return b"".join(
        b'{"cursor":{"partition":"0","offset":"%d"},"events":[{"n":%d}]}\n' % (each, each) for each in offsets
    )


@pytest.fixture
def cutting_server():
    with HTTPServer(("127.0.0.1", 0), Cutting) as server:
        server.asked = []
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def wanted_range(server):
    return Range(f"http://127.0.0.1:{server.server_port}", "a", "0", "BEGIN", "4", "")


def test_a_stream_that_is_cut_goes_on_where_it_was(cutting_server):
    """Half a line is read again, an event that came is not, and nothing after the last one is taken."""
    cutting_server.answers = [
        lines(1) + b'{"cursor":{"part',
        b'{"cursor":{"partition":"0","offset":"1"}}\n',
        lines(2),
        lines(3, 4, 5),
    ]

    assert list(read_range(wanted_range(cutting_server))) == [("0", f"{n}", f'{{"n":{n}}}') for n in (1, 2, 3, 4)]
    assert cutting_server.asked == ["BEGIN", "1", "1", "2"]


def test_events_that_do_not_come_are_not_left_out_in_silence(cutting_server):
    """A broker that says that it has events, and sends none, is a failure of the task."""
    cutting_server.answers = [lines(1), b"", b"", b""]

    with pytest.raises(ReadFailed, match="sends nothing behind 1, but 4 is its newest offset"):
        list(read_range(wanted_range(cutting_server)))
