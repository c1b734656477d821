"""The statements that a query may contain."""

import duckdb
import pytest

from nakadi_sql.errors import BadQuery
from nakadi_sql.statements import MAX_QUERY_LENGTH, table_names


@pytest.fixture(scope="module")
def database():
    with duckdb.connect() as connection:
        yield connection


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("select 1", set()),
        ("from order_placed", {"order_placed"}),
        ('select * from "order.placed" a join Customer b on a.id = b.id', {"order.placed", "Customer"}),
        ("with x as (from a) select * from x, (select * from b where n in (select n from c))", {"a", "b", "c"}),
        ("with recursive x as (select 1 as n union all select n + 1 from X where n < 3) from x", set()),
        ("select item.sku from a, unnest(a.items) as t(item)", {"a"}),
        ("describe a", {"a"}),
        ("summarize a", {"a"}),
        ("values (1), (2)", set()),
        ("select * from range(3)", set()),
    ],
)
def test_the_tables_of_a_query_are_found(database, query, names):
    """A query may name event types anywhere; a name that WITH defines is no event type. (Q2)"""
    assert table_names(database, query).needed == names


@pytest.mark.parametrize(
    "query",
    [
        "",
        "selec 1",
        "select 1; select 2",
        "copy (select 1) to '/tmp/x'",
        "copy a from '/etc/passwd'",
        "attach '/tmp/x.db'",
        "install httpfs",
        "load httpfs",
        "pragma version",
        "set memory_limit = '100GB'",
        "reset lock_configuration",
        "call enable_logging()",
        "create table a as select 1",
        "insert into a values (1)",
        "delete from a",
        "drop view a",
        "export database '/tmp/x'",
        "create secret (type s3)",
        "explain select 1",
        "show tables",
        "prepare x as select 1",
        "use a",
        "vacuum",
    ],
)
def test_what_is_no_single_select_is_refused(database, query):
    """A query is one SELECT; statements that write, open or set anything are refused. (Q6)"""
    with pytest.raises(BadQuery):
        table_names(database, query)


@pytest.mark.parametrize(
    "function",
    [
        "read_csv('/etc/passwd')",
        "READ_CSV_AUTO('/etc/passwd')",
        "read_text('/etc/passwd')",
        "read_blob('/etc/passwd')",
        "read_json('/etc/passwd')",
        "read_parquet('x.parquet')",
        "parquet_metadata('x.parquet')",
        "sniff_csv('/etc/passwd')",
        "glob('/etc/*')",
        "iceberg_scan('x')",
        "query('select 1')",
        "query_table('a')",
        "duckdb_settings()",
        "duckdb_secrets()",
        "duckdb_logs()",
        "pragma_version()",
        "json_execute_serialized_sql('{}')",
        "arrow_scan(1, 2, 3)",
    ],
)
def test_functions_that_read_something_are_refused(database, function):
    """FROM may name only event types and functions that make rows from values; this holds in nested queries and
    definitions, too. (Q6)
    """
    for query in (
        f"from {function}",
        f"select 1 where exists (select 1 from a, lateral (select * from {function}))",
        f"with x as (from {function}) from a",
        f"describe select * from {function}",
    ):
        with pytest.raises(BadQuery, match="cannot be used in FROM"):
            table_names(database, query)


@pytest.mark.parametrize("name", ["main.a", "memory.main.a", "information_schema.tables", "pg_catalog.pg_settings"])
def test_names_with_dots_need_quotes(database, name):
    """A name with dots does not mean a schema or a catalog; the answer says how to quote it. (Q3)"""
    with pytest.raises(BadQuery, match="in quotes"):
        table_names(database, f"from {name}")


def test_earlier_states_are_no_part_of_queries(database):
    """AT is refused: the log has only one state."""
    with pytest.raises(BadQuery, match="AT"):
        table_names(database, "from a at (version => 3)")


def test_a_query_has_a_length_and_a_depth(database):
    """A long or deeply nested query is refused with an explanation, and costs little. (Q6)"""
    with pytest.raises(BadQuery, match="longer"):
        table_names(database, "select " + " " * MAX_QUERY_LENGTH + "1")
    with pytest.raises(BadQuery):
        table_names(database, "select " + "(" * 20_000 + "1" + ")" * 20_000)
    with pytest.raises(BadQuery):
        table_names(database, "select " + "(select " * 5_000 + "1" + ")" * 5_000)
    with pytest.raises(BadQuery):
        table_names(database, "select " + "+".join("1" for _ in range(20_000)))
