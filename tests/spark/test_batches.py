"""Batches of new events, one after the other, for Spark 3.5."""

import json
import runpy
from contextlib import redirect_stdout
from io import StringIO

import pytest

import nakadi_spark
from nakadi_spark import BadRead
from nakadi_spark.batch_bounds import divide
from tests.support.pages import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "spark_source.py"


def numbers(rows):
    return sorted(row.n for row in rows.select("n").collect())


def test_a_batch_that_fails_comes_again_as_it_was(orders, tmp_path):
    """The bounds of a batch are stored before it is handled: after a failure, it comes again with the same number and
    events, and the next batch has what was published since then. (K11)
    """
    seen = []

    def handle(rows, batch):
        assert rows.columns == ["n", "customer"]
        seen.append((batch, numbers(rows)))
        if len(seen) == 1:
            raise ZeroDivisionError

    def run():
        columns = ["n", "customer"]
        nakadi_spark.for_each_batch(orders.spark, orders.url, orders.name, handle, tmp_path, columns=columns)

    first = orders.count
    with pytest.raises(ZeroDivisionError):
        run()
    orders.publish(2)
    run()
    run()
    assert seen == [(0, [*range(first)]), (0, [*range(first)]), (1, [first, first + 1])]


@pytest.mark.parametrize("from_stores", [False, True], ids=["broker", "stores"])
def test_a_batch_has_no_more_events_than_allowed(orders, tmp_path, from_stores):
    """`max_events` limits each batch, so a long log needs several. Together, they have each event once. (K13)"""
    batches = []
    source = nakadi_spark.Stores.in_folder(orders.folder) if from_stores else orders.url
    nakadi_spark.for_each_batch(
        orders.spark,
        source,
        orders.name,
        lambda rows, _: batches.append(numbers(rows)),
        tmp_path,
        columns=["n"],
        max_events=5,
    )
    assert max(map(len, batches)) <= 5
    assert sorted(n for batch in batches for n in batch) == [*range(orders.count)]


def test_a_batch_cannot_be_empty(orders, tmp_path):
    """A limit of no events is refused. (K13)"""
    with pytest.raises(BadRead, match="no number of events: 0"):
        nakadi_spark.for_each_batch(orders.spark, orders.url, orders.name, print, tmp_path, max_events=0)


@pytest.mark.parametrize(
    ("waiting", "max_events", "shares"),
    [
        ({"0": 3, "1": 7}, 10, {"0": 3, "1": 7}),
        ({"0": 30, "1": 70, "2": 0}, 10, {"0": 3, "1": 7, "2": 0}),
        ({"0": 1, "1": 999}, 10, {"0": 1, "1": 9}),
        ({"0": 5, "1": 5, "2": 5}, 2, {"0": 1, "1": 1, "2": 1}),
    ],
)
def test_partitions_share_a_batch_as_they_have_events(waiting, max_events, shares):
    """A batch takes as large a part of each partition, and at least one event. (K13)"""
    assert divide(waiting, max_events) == shares


def test_a_batch_may_come_from_stores(orders, tmp_path):
    """Batches may be read from the stores of a broker. (K11, K12)"""
    seen = []
    stores = nakadi_spark.Stores.in_folder(orders.folder)
    nakadi_spark.for_each_batch(
        orders.spark, stores, orders.name, lambda rows, _: seen.append(numbers(rows)), tmp_path, columns=["n"]
    )
    assert seen == [[*range(orders.count)]]


def test_an_event_type_that_does_not_exist_has_no_batches(orders, tmp_path):
    """If the event type does not exist, no batch is handled, and the error names the event type. (K11)"""
    with pytest.raises(BadRead, match=r"There is no event type no\.such"):
        nakadi_spark.for_each_batch(orders.spark, orders.url, "no.such", print, tmp_path)


def test_the_example_runs(orders, tmp_path, monkeypatch):
    """The example docs/examples/spark_source.py reads the published events, and writes them once. (K11)"""
    definition = json.loads((ROOT / "events/event_types/order.placed.json").read_text())
    batch = json.loads((ROOT / "events/batches/order.placed/three-orders.json").read_text())
    assert orders.api.post("/event-types", json=definition | {"name": "example.placed"}).status_code == 201
    assert orders.api.post("/event-types/example.placed/events", json=batch).status_code == 200
    monkeypatch.setenv("NAKADI_URL", orders.url)
    monkeypatch.setenv("EXAMPLE_FOLDER", str(tmp_path))
    monkeypatch.setenv("EXAMPLE_EVENT_TYPE", "example.placed")
    with redirect_stdout(StringIO()) as shown:
        made = runpy.run_path(str(EXAMPLE))
    assert all(event["order_number"] in shown.getvalue() for event in batch)
    assert made["written"].count() == 3
