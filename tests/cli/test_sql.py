"""`nakadi sql`."""

import json
from datetime import UTC, datetime

import httpx
import pytest
from pyarrow import parquet

from tests.support.api import create_event_type
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker


@pytest.fixture
def numbers_event_type(api):
    """The name, in quotes, of an event type with five events."""
    schema = {"properties": {"n": {"type": "integer"}, "text": {"type": "string"}}}
    name = create_event_type(api, schema=schema)["name"]
    assert (
        api.post(f"/event-types/{name}/events", json=[{"n": n, "text": f"t{n}"} for n in range(5)]).status_code == 200
    )
    return f'"{name}"'


def test_rows_are_printed_in_three_forms(run, numbers_event_type):
    """A result is a table, lines of JSON, or CSV. (Q9)"""
    query = f"select n, text from {numbers_event_type} where n < 2 order by n"
    assert [line.split() for line in run("sql", query).out.splitlines()] == [["n", "text"], ["0", "t0"], ["1", "t1"]]
    assert run("sql", query, "--json").lines == [{"n": 0, "text": "t0"}, {"n": 1, "text": "t1"}]
    assert run("sql", query, "--csv").out == "n,text\n0,t0\n1,t1\n"


def test_values_of_all_types_are_written(run):
    """Numbers keep their digits, timestamps are in UTC, and lists and objects are JSON. (Q9)"""
    query = """
        select 12345678901234567890123 as a, 1.10 as b, timestamptz '2026-11-20 12:00:00+02' as c, [1, null] as d,
            {'x': date '2026-11-20'} as e, map {'k': 'v'} as f, null as g, true as h, 'nan'::double as i,
            interval 1 day as j, 'a,"b"' as k
    """
    [found] = run("sql", query, "--json").lines
    assert datetime.fromisoformat(found.pop("c")) == datetime(2026, 11, 20, 10, tzinfo=UTC)
    assert found.pop("j")
    assert found == {
        "a": 12345678901234567890123,
        "b": 1.1,
        "d": [1, None],
        "e": {"x": "2026-11-20"},
        "f": {"k": "v"},
        "g": None,
        "h": True,
        "i": None,
        "k": 'a,"b"',
    }
    assert '"b":1.10' in run("sql", query, "--json").out
    csv = run("sql", "select [1, 2] as a, 1.10 as b, null as c, 'x,y' as d, date '2026-11-20' as e", "--csv").out
    assert csv == 'a,b,c,d,e\n"[1,2]",1.10,,"x,y",2026-11-20\n'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("interval '1 month 2 days'", "1 month 2 days"),
        ("340282366920938463463374607431768211455::uhugeint", "340282366920938463463374607431768211455"),
        ("timestamp_ns '2020-01-01 00:00:00.123456789'", "2020-01-01 00:00:00.123456789"),
        ("'101'::bit", "101"),
        ("'12:00:00+02'::timetz", "12:00:00+02"),
    ],
)
def test_unusual_values_are_texts(run, value, text):
    """A value whose type some formats lack becomes the text that DuckDB writes, in the order of the rows. (Q9)"""
    query = f"select n, {value} as x from range(3) t(n) order by n desc"
    assert run("sql", query, "--json").lines == [{"n": n, "x": text} for n in (2, 1, 0)]


def test_a_moment_that_python_does_not_know_is_refused(run):
    """A timestamp outside Python's range is refused, and the message says to cast it. (Q9)"""
    for value in ("date '290000-01-01'", "'infinity'::timestamp"):
        refused = run("sql", f"select {value}", "--json")
        assert (refused.code, refused.out) == (2, "")
        assert "cast to varchar" in refused.err


def test_a_parquet_file_is_written(run, numbers_event_type, tmp_path):
    """`--parquet` writes the rows to a file. (Q9)"""
    file = tmp_path / "numbers.parquet"
    done = run("sql", f"select n, n as n from {numbers_event_type} order by n", "--parquet", str(file))
    assert (done.code, done.out) == (0, "")
    assert parquet.read_table(file).to_pylist() == [{"n": n, "n_1": n} for n in range(5)]
    assert run("sql", "select 1", "--parquet", str(tmp_path / "nowhere" / "x.parquet")).code == 2
    assert run("sql", "select 1", "--parquet", str(file), "--csv").code == 2


def test_the_exit_code_says_what_happened(run, numbers_event_type):
    """The exit code is 2 for a refused query, 1 for one that takes too long, and 7 for a truncated result. (Q7, Q9)"""
    refused = run("sql", "from read_csv('/etc/passwd')")
    assert (refused.code, refused.out) == (2, "")
    assert "read_csv" in refused.err
    assert run("sql", "from nothing.there").code == 2
    slow = run(
        "sql", "select max(hash(a.range + b.range)) from range(10000000000) a, range(1000000) b", "--timeout", "0.3"
    )
    assert slow.code == 1
    assert "0.3 seconds" in slow.err
    cut = run("sql", f"from {numbers_event_type}", "--max-rows", "2", "--json")
    assert (cut.code, len(cut.lines)) == (7, 2)
    assert "more than 2 rows" in cut.err


def test_a_terminal_obeys_nothing(run):
    """Characters that a terminal would interpret are replaced or, in JSON, escaped."""
    assert "\x1b" not in run("sql", "select chr(27) || '[31m' as x").out
    assert json.loads(run("sql", "select chr(155) as x", "--json").out) == {"x": "\x9b"}
    assert "\x9b" not in run("sql", "select chr(155) as x", "--json").out


def test_a_broker_that_is_not_there_is_named(run):
    """If the broker does not answer, the exit code is 6."""
    assert run("sql", "from order_placed", url="http://127.0.0.1:1").code == 6


@pytest.fixture
def folder(tmp_path):
    """The data folder of a broker, and a broker on it."""
    path = tmp_path / "data"
    path.mkdir()
    stores = f"sqlite:///{path / 'nakadi.db'}"
    with ServedBroker(registry=stores, event_log=stores, archive=str(path / "archive")) as broker:
        yield path, broker


def test_a_data_folder_is_asked_without_a_broker(run, folder):
    """`--data` finds the events of a folder whether or not a broker runs on it, and changes nothing. (Q17)"""
    path, broker = folder
    with httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        name = create_event_type(api, schema={"properties": {"n": {"type": "integer"}}})["name"]
        assert api.post(f"/event-types/{name}/events", json=[{"n": n} for n in range(4)]).status_code == 200
        query = f'select count(*) as events, sum(n)::int as total from "{name}"'
        assert run("sql", "--data", str(path), query, "--json", url=None).lines == [{"events": 4, "total": 6}]
        assert api.post(f"/event-types/{name}/events", json=[{"n": 4}]).status_code == 200
    broker.close()
    for _ in range(2):
        assert run("sql", "--data", str(path), query, "--json", url=None).lines == [{"events": 5, "total": 10}]


def test_a_data_folder_whose_events_are_elsewhere_is_refused(run, tmp_path):
    """If a folder's broker keeps its events in another log, such as Kafka, the command says which setting names it.
    (Q17)
    """
    with ServedBroker(registry=f"sqlite:///{tmp_path / 'nakadi.db'}", event_log="memory:") as broker:
        with httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
            name = create_event_type(api)["name"]
        refused = run("sql", "--data", str(tmp_path), f'from "{name}"', url=None)
    assert refused.code == 2
    assert "are in another log" in refused.err
    assert "NAKADI_EVENT_LOG" in refused.err


def test_a_folder_without_a_data_file_is_refused(run, tmp_path):
    """A folder without a data file is refused, and stays unchanged. (Q17)"""
    refused = run("sql", "--data", str(tmp_path / "nothing"), "select 1", url=None)
    assert refused.code == 2
    assert "no nakadi.db" in refused.err
    assert not (tmp_path / "nothing").exists()
