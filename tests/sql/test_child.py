"""A query in its own process, as a broker starts it: its answers, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nakadi_sql import BadQuery
from nakadi_sql.__main__ import Order, answer_order
from nakadi_sql.errors import NoTable, PackageMissing, TablesUnreadable
from tests.support.api import create_event_type
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE

ENDLESS = "select max(hash(a.range + b.range)) from range(10000000000) a, range(1000000) b"

LIMITS = {"seconds": PATIENCE, "megabytes": 256, "rows": 1000, "bytes": 100_000}


@pytest.fixture
def answer(broker):
    """A function that runs a query in this process, and returns the kind of the answer and its body or sentence."""

    def answer(sql, **changes):
        kind, text = answer_order(Order(sql=sql, url=broker.url, **{**LIMITS, **changes}))
        return kind, json.loads(text) if kind == "answer" else text

    return answer


def test_a_result_has_columns_rows_and_exact_numbers(api, answer):
    """A result has the names and types of its columns, its rows as lists, and numbers with all digits. (Q11)"""
    name = create_event_type(api, schema={"properties": {"n": {"type": "integer"}}})["name"]
    assert api.post(f"/event-types/{name}/events", json=[{"n": n} for n in range(3)]).status_code == 200
    kind, found = answer(f'select n, n as n, [n] as list, 1.10 as price from "{name}" order by n')
    assert kind == "answer"
    assert found.pop("seconds") > 0
    assert found == {
        "columns": [
            {"name": "n", "type": "BIGINT"},
            {"name": "n_1", "type": "BIGINT"},
            {"name": "list", "type": "BIGINT[]"},
            {"name": "price", "type": "DECIMAL(3,2)"},
        ],
        "rows": [[n, n, [n], 1.1] for n in range(3)],
        "cut": False,
        "notes": [],
    }


def test_a_result_has_its_rows_and_bytes(answer):
    """A result that exceeds its limit of rows or bytes ends there, and says so; a single row that is too long is
    refused. (Q13)
    """
    _, found = answer("select range from range(5) order by 1", rows=2)
    assert (found["rows"], found["cut"]) == ([[0], [1]], True)
    _, found = answer("select repeat('x', 40000) from range(5)")
    assert (len(found["rows"]), found["cut"]) == (2, True)
    kind, sentence = answer("select repeat('x', 200000)")
    assert kind == "bad_query"
    assert "100000 bytes" in sentence


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("select getenv('HOME')", "bad_query"),
        ("from read_csv('/etc/passwd')", "bad_query"),
        ("select * from '/etc/passwd'", "bad_query"),
        ("from read_parquet('http://127.0.0.1:1/x.parquet')", "bad_query"),
        ("copy (select 1) to '/tmp/nakadi-query-stolen.csv'", "bad_query"),
        ("attach '/tmp/nakadi-query-stolen.db'", "bad_query"),
        ("install httpfs", "bad_query"),
        ("load httpfs", "bad_query"),
        ("pragma memory_limit = '100GB'", "bad_query"),
        ("set lock_configuration = false", "bad_query"),
        ("call pragma_version()", "bad_query"),
        ("from duckdb_secrets()", "bad_query"),
        ("from query('select 1')", "bad_query"),
        ("select 1; select 2", "bad_query"),
        ("select 1; attach '/tmp/nakadi-query-stolen.db'", "bad_query"),
        ("", "bad_query"),
        (f"select '{'x' * 100_000}'", "bad_query"),
        ("select list(range) from range(1000000000)", "stopped"),
    ],
)
def test_a_hostile_query_is_refused_or_stopped(answer, sql, kind):
    """No query reads a file, reaches the network, runs code, changes a setting, or takes more memory than it may. (Q6,
    Q13)
    """
    assert answer(sql)[0] == kind
    assert not Path("/tmp/nakadi-query-stolen.csv").exists()
    assert not Path("/tmp/nakadi-query-stolen.db").exists()


@pytest.mark.parametrize(
    "sql",
    [
        ENDLESS,
        "select count(*) from range(1000000) a, range(1000000) b where a.range + b.range < 0",
        "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t",
    ],
)
def test_an_endless_query_is_stopped(answer, sql):
    """A join of a trillion rows and an endless recursion are stopped when their time is over. (Q13)"""
    kind, sentence = answer(sql, seconds=0.5)
    assert kind == "stopped"
    assert "0.5 seconds" in sentence


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoTable("…"), "tables_unreadable"),
        (TablesUnreadable("…"), "tables_unreadable"),
        (PackageMissing("…"), "package_missing"),
        (BadQuery("…"), "bad_query"),
    ],
)
def test_what_the_caller_cannot_change_is_not_called_a_bad_query(monkeypatch, answer, error, kind):
    """Tables that cannot be read and missing packages are not reported as faults of the query. (Q11, Q16)"""

    def fail(*_):
        raise error

    monkeypatch.setattr("nakadi_sql.__main__.open_tables", fail)
    assert answer("select 1", tables="data/tables") == (kind, "…")


def test_a_broker_that_is_not_there_is_no_fault_of_the_query():
    """If the broker is unreachable, the answer says that the caller may try again."""
    kind, _ = answer_order(Order(sql="from order_placed", url="http://127.0.0.1:1", **LIMITS))
    assert kind == "no_answer"


def test_a_child_ends_with_its_parent(broker):
    """When the standard input of the process closes, as when the broker has been killed, the process ends even in the
    middle of a query. (Q13)
    """
    order = {"sql": ENDLESS, "url": broker.url, **LIMITS}
    command = [sys.executable, "-m", "nakadi_sql"]
    environ = plain_environment(PYTHONPATH=":".join(each for each in sys.path if each))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as child:
        child.stdin.write(json.dumps(order).encode() + b"\n")
        child.stdin.close()
        assert child.wait(PATIENCE) == 1
        assert child.stdout.read() == b""
