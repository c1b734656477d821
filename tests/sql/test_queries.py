"""The database of a query: what it can access, and which resources it may use."""

import random
import threading
from pathlib import Path

import pytest

from nakadi.model.event_type import Category
from nakadi_sql import BadQuery, Limits, QueryStopped, ask
from nakadi_sql.queries import _Database, _pick_end
from nakadi_sql.sources import EventTypeInfo, is_in_table, seam_condition

LIMITS = Limits(seconds=60)

ENDLESS = "select max(hash(a.range + b.range)) from range(10000000000) a, range(1000000) b"

SCHEMA = {"properties": {"n": {"type": "integer"}}}


class NoEvents:
    """A source with one event type, which has no events."""

    def names(self):
        return iter(["order.placed"])

    def find(self, name):
        if name != "order.placed":
            return None
        return EventTypeInfo(name=name, category=Category.UNDEFINED, schemas=[SCHEMA])

    def events(self, _event_type):
        return iter(())


def rows(query, limits=LIMITS):
    with ask(query, NoEvents(), None, limits) as answer:
        return [*answer.rows()]


@pytest.fixture
def run():
    """A function that runs a statement in a locked database, without the check of the statement."""
    opened = []

    def run(statement, folders=()):
        database = _Database(LIMITS)
        opened.append(database)
        with database.errors():
            _, reader = database.run(statement, folders)
            return reader.read_all().to_pylist()

    yield run
    for database in opened:
        database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_blob('/etc/passwd')",
        "select * from read_json('/proc/self/environ')",
        "select * from '/etc/passwd.csv'",
        "select * from glob('/etc/*')",
        "select * from sniff_csv('/etc/passwd')",
        "select * from read_csv('http://127.0.0.1:1/x.csv')",
        "select * from 's3://bucket/x.parquet'",
        "copy (select 1) to '/tmp/nakadi-sql-stolen.csv'",
        "export database '/tmp/nakadi-sql-stolen'",
        "attach '/tmp/nakadi-sql-stolen.db' as x",
        "install httpfs",
        "load httpfs",
        "load '/tmp/x.duckdb_extension'",
        "set enable_external_access = true",
        "set memory_limit = '100GB'",
        "set allowed_directories = ['/']",
        "reset lock_configuration",
        "pragma memory_limit = '100GB'",
        "select getenv('HOME')",
        "select * from rows",
    ],
)
def test_a_locked_database_reaches_nothing(run, statement):
    """Even if the check of statements overlooks one, the database itself refuses files, the network, extensions,
    settings and the environment. (Q6)
    """
    with pytest.raises(BadQuery):
        run(statement)
    assert not [*Path("/tmp").glob("nakadi-sql-stolen*")]


def test_only_the_folders_of_tables_are_open(run, tmp_path):
    """When the folder of a table is open, its neighbours stay closed, even to a link or a path that leads out of the
    folder. (Q6)
    """
    table, other = tmp_path / "table", tmp_path / "table_2"
    for folder in (table, other):
        folder.mkdir()
        (folder / "x.csv").write_text("n\n1\n")
    assert run(f"from read_csv('{table}/x.csv')", [str(table)]) == [{"n": 1}]
    for path in (f"{other}/x.csv", f"{table}/../table_2/x.csv", "/etc/passwd"):
        with pytest.raises(BadQuery):
            run(f"from read_csv('{path}')", [str(table)])


def test_a_query_may_name_the_event_type_or_its_table():
    """A query may use the name of the event type, or of its table in any case of letters. (Q3)"""
    for name in ("order_placed", "Order_Placed", '"order.placed"'):
        assert rows(f"select count(*), max(n) from {name}") == [(0, None)]
    with pytest.raises(BadQuery, match="no event type"):
        rows('from "order-placed"')


def test_with_may_define_the_name_of_an_event_type():
    """A name that WITH defines does not mean an event type, except in the definition of that name itself. (Q2)"""
    assert rows("with order_placed as (select n from order_placed) select count(*) from order_placed") == [(0,)]
    assert rows("with nothing as (select 1) select count(*) from nothing") == [(1,)]
    assert rows("with a as (from order_placed), Order_Placed as (select 1) select count(*) from a, order_placed") == [
        (0,)
    ]


def test_a_query_that_makes_no_sense_is_refused():
    """The error for an invalid query has the message of DuckDB, which says what is wrong."""
    with pytest.raises(BadQuery, match="x"):
        rows("select x from order_placed")
    with pytest.raises(BadQuery, match="abc"):
        rows("select cast(a as integer) from (values ('abc')) t(a)")


def test_a_query_has_its_time():
    """A query is stopped when its time is over: while it sorts, and while its rows are read. (Q7)"""
    for query in (
        ENDLESS,
        "select hash(a) from range(100000000000) t(a) where hash(a) = 1",
    ):
        with pytest.raises(QueryStopped, match=r"more than 0\.2 seconds"):
            rows(query, Limits(seconds=0.2))


def test_a_query_that_begins_after_its_time_ends():
    """If the source takes all the time, the time ends before the statement runs; the query is refused nevertheless.
    (Q7)
    """

    class SlowSource(NoEvents):
        def events(self, _event_type):
            threading.Event().wait(0.1)
            return iter(())

    query = f"with x as ({ENDLESS}) select * from x, (select count(*) from order_placed)"
    with pytest.raises(QueryStopped), ask(query, SlowSource(), None, Limits(seconds=0.01)) as answer:
        [*answer.rows()]


def test_a_query_has_its_memory():
    """A query that needs more memory and disk than it may use ends with an explanation, and the process continues.
    (Q7)
    """
    with pytest.raises(QueryStopped, match="64 MB"):
        rows("select list(range) from range(100000000)", Limits(megabytes=64, seconds=60))


def test_a_result_has_its_rows():
    """A result with more rows than the limit is cut after the first rows, and the answer says that there are
    more. (Q7)
    """
    for found, cut in ((10, False), (11, True), (5000, True)):
        with ask(f"from range({found})", NoEvents(), None, Limits(rows=10)) as answer:
            assert [row[0] for row in answer.rows()] == [*range(10)]
            assert answer.is_cut is cut


def test_columns_with_the_same_name_are_told_apart():
    """The second column with the same name gets a number at its end."""
    with ask("select 1 as a, 2 as a, 3 as a_1", NoEvents(), None, LIMITS) as answer:
        assert answer.names == ["a", "a_1", "a_1_1"]
        assert [*answer.rows()] == [(1, 2, 3)]


def test_the_seam_is_the_same_in_sql():
    """For any timelines that a table has begun, the SQL condition selects exactly the rows of the table that are before
    the positions from which the log is read. (Q4)
    """
    drawn = random.Random(7)
    places = [(t, p, o) for t in range(1, 5) for p in range(4) for o in range(4)]
    listed = ", ".join(map(str, places))
    for _ in range(10):
        # Every partition has a cursor in the newest timeline.
        older = [{t: drawn.randrange(5) for t in range(1, 5) if drawn.random() < 0.5} for _ in range(3)]
        newest = max((t for known in older for t in known), default=1)
        seam = {p: {newest: drawn.randrange(5), **known} for p, known in enumerate(older)}
        table = f"(values {listed}) t(nakadi_timeline, nakadi_partition, nakadi_offset)"
        found = rows(f"from {table} where {seam_condition(seam, _pick_end)}")
        assert set(found) == {place for place in places if is_in_table(seam, *place)}, seam
