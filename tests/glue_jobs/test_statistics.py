"""The traffic of event types is measured, kept, and returned beside the owners' expectations."""

from datetime import timedelta
from pathlib import Path

import pytest

from nakadi.event_types.table_states import TABLE_STATES_KIND, TableState, table_state_body
from nakadi.model.event_type import Category
from nakadi.ports.registry import PutDocument
from nakadi_jobs.data_files import TimeRange
from nakadi_jobs.history import MEASUREMENTS
from nakadi_jobs.tables import ChangedMeanwhile, Table
from tests.support.jobs import STORED_AT, Jobs, order
from tests.support.table_readers import read_with_duckdb, read_with_pyiceberg, read_with_spark

BUSINESS = {"schema": {"properties": {"note": {"type": "string"}}}, "category": Category.BUSINESS}
UNTIL = ("--until", (STORED_AT + timedelta(hours=2)).isoformat(), "--hours", "2")


def an_event_by(publisher, **more):
    return {"metadata": {"eid": "e", "published_by": publisher, "received_at": "now"}, **more}


@pytest.fixture
def orders(data):
    """Two hours of orders: 60 by two publishers in the first, 6 of them in the emptier partition; 12 in the second."""
    made = data.event_type("order.placed", partitions=2, **BUSINESS)
    data.archive_events(
        made, [an_event_by("shop") if number % 2 else an_event_by("app", note="n" * 100) for number in range(54)]
    )
    data.archive_events(made, [an_event_by("shop")] * 6, partition=1)
    data.archive_events(made, [an_event_by("shop")] * 12, at=STORED_AT + timedelta(hours=1), apart=timedelta(0))
    data.archive_events(made, [an_event_by("later")] * 12, at=STORED_AT + timedelta(hours=5))
    return made


def test_windows_are_measured(jobs, data, orders, tmp_path):
    """Each window has its sizes, rates, publishers and skew; measuring again changes nothing; plots are drawn."""
    state = TableState(
        table_name="a",
        next_offsets={},
        row_count=72,
        misfit_count=0,
        unreadable_count=0,
        updated_at=STORED_AT,
        latency_seconds=90.0,
    )
    data.registry.write(PutDocument(TABLE_STATES_KIND, orders.id, table_state_body(state)))
    first = jobs.measured(*UNTIL)
    second = jobs.measured(*UNTIL, "--plots", str(tmp_path / "plots"))

    assert (first.code, second.code) == (0, 0)
    assert "order.placed" in first.shown
    table = jobs.table("nakadi__statistics").orderBy("window_start").collect()
    told = [
        (row["events"], row["publishers"], row["per_minute_peak"], round(row["partition_skew"], 2)) for row in table
    ]
    assert told == [(60, 2, 60, 1.8), (12, 1, 12, 2.0)]
    small, large = (
        len(str(an_event_by(who, **more)).replace(" ", ""))
        for who, more in (("shop", {}), ("app", {"note": "n" * 100}))
    )
    assert table[0]["size_max"] == large
    assert table[0]["size_p50"] == pytest.approx(small, rel=0.01)
    assert table[0]["size_mean"] == pytest.approx((33 * small + 27 * large) / 60)
    for name in ("rate.png", "size.png", "skew.png", "tables.png"):
        assert Path(tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG")

    measured = data.event_types.measured_statistics(orders)
    assert measured.recommended_partitions == 2
    assert measured.statistic.write_parallelism == 2
    assert measured.statistic.messages_per_minute == round(72 / 120)


def test_payloads_that_look_like_metadata(jobs, data):
    """The publisher is the publishing application, even if a payload has a field with the same name."""
    made = data.event_type("order.placed", **BUSINESS)
    data.archive_events(
        made, [an_event_by("shop", note='"published_by":"b"', more={"published_by": "c"}), an_event_by("app")]
    )
    jobs.measured(*UNTIL)
    assert data.event_types.measured_statistics(made).statistic.write_parallelism == 2


def test_bad_input_is_left_out(jobs, data):
    """Statistics report damaged parts, and measure the others. Events without the broker's metadata have no
    publisher.
    """
    pages = data.event_type("page.viewed", schema={})
    data.archive_events(pages, [order(1)] * 3)
    cut = data.archive_events(pages, [order(1)] * 3)
    data.path(cut).write_bytes(data.path(cut).read_bytes()[:-5])

    told = jobs.measured(*UNTIL)

    assert told.code == 0
    assert "left out" in told.told
    assert jobs.table("nakadi__statistics").select("events", "publishers").first() == (3, 0)


@pytest.mark.long
def test_what_deleted_event_types_had_is_forgotten(jobs, data):
    """The measurements of a deleted event type are removed."""
    pages = data.event_type("page.viewed", schema={})
    data.archive_events(pages, [order(1)])
    jobs.measured(*UNTIL)
    data.delete("page.viewed")
    jobs.measured(*UNTIL)
    assert data.event_types.measured_statistics(pages) is None


@pytest.mark.long("tests/glue_jobs/test_statistics.py::test_windows_are_measured")
def test_the_table_is_counted(jobs, data, orders):
    """Events in the table are counted in the table, and later ones in the archive, and the figures match all lines."""
    lines = jobs.measured(*UNTIL)
    first = windows_of(jobs)
    jobs.compact()
    data.archive_events(orders, [an_event_by("late", note="x")] * 3, at=STORED_AT + timedelta(minutes=90))
    jobs.measured(*UNTIL)
    second = windows_of(jobs)

    assert lines.code == 0
    assert second[0] == first[0]
    assert second[1][:2] == (first[1][0] + 3, first[1][1] + 1)

    # Events that the log removes later stay counted.
    for segment in list(data.index.segments_from(orders.timeline.topic, 1, 0, 10)):
        data.path(segment).unlink()
    jobs.measured(*UNTIL)
    assert windows_of(jobs) == second


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_event_types_are_counted_together(jobs, data, tables):
    """More event types take no more Spark jobs, and those without news take none."""
    alone = jobs.spark_jobs(lambda: jobs.measured(*UNTIL))
    pages = data.event_type("page.viewed", partitions=2, schema={})
    data.archive_events(pages, [order(1), order(2)])
    data.archive_events(
        data.event_type("long.ago", **BUSINESS), [an_event_by("shop")], at=STORED_AT - timedelta(days=2)
    )

    # These jobs use a separate database, because measuring again would replace rows.
    jobs = Jobs(data, tables)
    together = jobs.spark_jobs(lambda: jobs.measured(*UNTIL))

    # Every task gets the wanted event types, and events are counted. The measurements are written without Spark.
    assert (alone, together) == (2, 2)
    figures = ("event_type", "events", "publishers")
    of_orders = {("order.placed", 60, 2), ("order.placed", 12, 1)}
    assert set(make_rows(jobs, *figures)) == {*of_orders, ("page.viewed", 2, 0)}

    # Measuring one event type again leaves the figures of the other unchanged, although they are rewritten with the
    # same day.
    data.archive_events(pages, [order(3)])
    assert jobs.spark_jobs(lambda: jobs.measured(*UNTIL, "--event-types", "page.viewed")) == 2
    assert set(make_rows(jobs, *figures)) == {*of_orders, ("page.viewed", 3, 0)}

    later = ("--until", (STORED_AT + timedelta(days=9)).isoformat())
    assert jobs.spark_jobs(lambda: jobs.measured(*later)) == 0


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_one_of_two_simultaneous_runs_starts_over(jobs, tables):
    """A run does not overwrite days that another run has changed meanwhile, starts over, and leaves nothing of its
    first attempt.
    """
    jobs.measured(*UNTIL)
    table = Table(jobs.spark(), jobs.database, MEASUREMENTS.name)
    times = TimeRange("window_start", STORED_AT - timedelta(days=1), STORED_AT + timedelta(days=1))

    def as_there(_, contents):
        [content] = contents
        return {f"window_start_day={STORED_AT:%Y-%m-%d}": content}

    def rewrite_meanwhile(fields, contents):
        table.rewrite(times, as_there)
        return as_there(fields, contents)

    with pytest.raises(ChangedMeanwhile):
        table.rewrite(times, rewrite_meanwhile)
    assert table.rows().count() == 2
    files = [*(tables / jobs.database / MEASUREMENTS.name).rglob("*.parquet")]
    known = jobs.spark().table(f"{table.path}.all_files").select("file_path").distinct().collect()
    assert {file.name for file in files} == {row["file_path"].rpartition("/")[2] for row in known}


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_measurements_are_read_alike(jobs, tables):
    """Spark, DuckDB and pyiceberg read the same measurements, of several days, and of windows of several lengths."""
    jobs.measured("--until", (STORED_AT + timedelta(days=1)).isoformat(), "--hours", "36")
    jobs.measured("--until", (STORED_AT + timedelta(days=1)).isoformat(), "--window-minutes", "120")
    folder = tables / jobs.database / MEASUREMENTS.name
    rows = sorted(map(str, read_with_spark(jobs.table(MEASUREMENTS.name))))
    assert len(rows) == 5
    assert sorted(map(str, read_with_duckdb(folder))) == rows
    assert sorted(map(str, read_with_pyiceberg(folder))) == rows


def windows_of(jobs):
    return make_rows(
        jobs, "events", "publishers", "bytes", "size_p50", "size_p95", "size_max", "per_minute_peak", "partition_skew"
    )


def make_rows(jobs, *columns):
    return [tuple(row) for row in jobs.table("nakadi__statistics").orderBy("window_start").select(*columns).collect()]
