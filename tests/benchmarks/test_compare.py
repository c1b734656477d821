"""The benchmark that compares two brokers measures each row, and reports rows that it could not measure."""

import time

import httpx
import pytest

from benchmarks.compare import Failure, Row, Table, compare, is_loopback, row_of_rounds, summary
from benchmarks.compare_rows import HIGHER, LOADS, LOWER, PARTS, Figure
from benchmarks.compared_broker import ComparedBroker
from nakadi import local
from tests.support.patience import PATIENCE

ROWS = {name: measure for rows in PARTS.values() for name, measure in rows.items()}
A_FEW_ROWS = (
    "publish plain, 1 a batch, 64 clients",
    "publish plain, 100 a batch, gzip, 8 clients",
    "four low-level streams",
    "subscription, a commit a batch",
    "idle streams",
)


@pytest.fixture
def brokers():
    with local.Broker() as first, local.Broker() as second:
        yield ComparedBroker(first.url), ComparedBroker(second.url)


def check_rows(brokers, names):
    rows = list(compare(*brokers, {name: ROWS[name] for name in names}, rounds=1, seconds=0.02))

    assert all(each.first > 0 and each.second > 0 and each.fdatasync_ms > 0 for each in rows)
    for each in brokers:
        found = [event_type["name"] for event_type in httpx.get(f"{each.url}/event-types", timeout=PATIENCE).json()]
        assert not [name for name in found if name.startswith("compare.")]
        assert httpx.get(f"{each.url}/subscriptions", timeout=PATIENCE).json()["items"] == []
    return {each.name for each in rows}


def test_rows_are_measured_and_nothing_is_left(brokers):
    """A row has figures of both brokers, and measuring removes the event types and subscriptions that it has
    created.
    """
    figures = check_rows(brokers, A_FEW_ROWS)

    assert {name for name in figures if name.endswith(": events/s")} == {
        "publish plain, 1 a batch, 64 clients: events/s",
        "publish plain, 100 a batch, gzip, 8 clients: events/s",
        "4 low-level streams: events/s",
        "subscription, a commit a batch: events/s",
    }
    assert "200 idle streams, head of the answer: p99, ms" in figures


@pytest.mark.long
def test_every_row_is_measured(brokers):
    """This broker accepts the requests of each row, whatever the shape of the events."""
    figures = check_rows(brokers, ROWS)

    loads = [load.name for loads in LOADS.values() for load in loads]
    assert {f"{name}: events/s" for name in loads} <= figures
    assert {f"delivery at {rate}/s: p50, ms" for rate in (10, 50, 100, 1000)} <= figures


def test_a_row_that_a_broker_refuses_is_reported_and_the_others_are_measured(brokers, capsys):
    """If a broker refuses the requests of a load, the failure names the reason, and the other loads are measured."""

    async def request_unknown_event_type(broker, _seconds):
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            (await client.get(f"{broker.url}/event-types/unknown")).raise_for_status()

    async def measure_one_figure(_broker, _seconds):
        return {"measured": Figure(1, HIGHER)}

    failure, *rows = compare(
        *brokers, {"refused": request_unknown_event_type, "measured": measure_one_figure}, rounds=1, seconds=0
    )

    assert isinstance(failure, Failure)
    assert failure.load == "refused"
    assert "404" in failure.reason
    assert [each.name for each in rows] == ["measured"]
    assert "refused: " in capsys.readouterr().err


def test_no_load_begins_after_the_time_is_over(brokers):
    """Once the time for the comparison is over, no further load begins."""
    asked = []

    async def measure_one_figure(_broker, _seconds):
        asked.append(time.monotonic())
        return {"measured": Figure(1, HIGHER)}

    rows = compare(*brokers, {"first": measure_one_figure, "second": measure_one_figure}, 1, 0, time.monotonic() - 1)

    assert list(rows) == []
    assert asked == []


def test_a_table_is_continued(tmp_path):
    """Each row is written to the file at once. A later run only measures rows that are missing or failed."""
    table = Table.open(tmp_path / "rows.json")
    found = Row("plain: events/s", 2, 1, 2, 2, 2, 0.1, "plain")
    table.add(found)
    table.add(Failure("10 KB", "207"))

    continued = Table.open(tmp_path / "rows.json")

    assert continued.rows == [found]
    assert continued.measured_loads == {"plain"}
    assert continued.failures == []


def test_above_one_the_first_broker_is_better():
    """The ratio is computed in each round, before the median, and inverted for figures for which less is better."""
    rates = [(Figure(200, HIGHER), Figure(100, HIGHER)), (Figure(30, HIGHER), Figure(10, HIGHER))]
    delays = [(Figure(1, LOWER), Figure(4, LOWER))]

    assert row_of_rounds("load", "rate", rates, 0.1) == Row("rate", 115, 55, 2.5, 2, 3, 0.1, "load")
    assert row_of_rounds("load", "delay", delays, 0.1) == Row("delay", 1, 4, 4, 4, 4, 0.1, "load")


def test_the_summary_names_the_least_rate():
    """The summary has the median and the smallest ratio of the rates; latencies and CPU do not count as rates."""
    rows = [Row(f"{name}: events/s", 1, 1, ratio, 0, 9, 0.1, name) for name, ratio in (("a", 2), ("b", 1), ("c", 4))]

    assert summary([*rows, Row("a: p50, ms", 1, 1, 0.1, 0, 9, 0.1, "a")]) == (
        "\nOf 3 rates: median 2.00, least 1.00 (b: events/s)"
    )


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080", True),
        ("http://localhost", True),
        ("http://10.0.0.1:8080", False),
        ("http://events.example.org", False),
        ("http://localhost.example.org", False),
    ],
)
def test_brokers_elsewhere_are_found_out(url, loopback):
    """A load test measures only brokers on this machine, unless an option permits others."""
    assert is_loopback(url) is loopback
