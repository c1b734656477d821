"""`nakadi sql`: queries events with SQL."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from nakadi_cli.commands import chosen_connection, command, noticing_signals, print_note
from nakadi_cli.failures import BadInput, Failed, PartlyFailed
from nakadi_cli.output import harmless, harmless_json, show_value

if TYPE_CHECKING:
    from nakadi_sql import Answer


@command(
    "sql",
    'nakadi sql "select customer.country, count(*) from order_placed group by all"',
    'nakadi sql --tables data/tables "from order_placed where nakadi_time > now() - interval 1 hour" --json',
    'nakadi sql "select * from order_placed" --parquet orders.parquet',
    'nakadi sql "describe order_placed"',
    'nakadi sql --data data "select count(*) from order_placed"',
    shows=False,
)
@click.argument("query")
@click.option("--data", metavar="FOLDER", help="Query this data folder instead of a broker: see above.")
@click.option("--tables", envvar="NAKADI_TABLES", help="Where the jobs' tables are: see above.")
@click.option("--database", default="nakadi", show_default=True, help="The database of the tables.")
@click.option("--json", "form", flag_value="json", help="Print each row as JSON, on a separate line.")
@click.option("--csv", "form", flag_value="csv", help="Print the rows as CSV, with the names of the columns above.")
@click.option("--parquet", metavar="FILE", help="Write the rows to this Parquet file.")
@click.option(
    "--max-rows", type=click.IntRange(1), default=100_000, show_default=True, help="End after this many rows."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    help="Seconds that the whole query may take.",
)
@click.option(
    "--memory", type=click.IntRange(64), default=1024, show_default=True, help="Megabytes of memory for the query."
)
def sql(
    query: str,
    data: str | None,
    tables: str | None,
    database: str,
    form: str | None,
    parquet: str | None,
    **bounds: Any,
) -> None:
    """Query events with SQL: a SELECT in the dialect of DuckDB, where each event type is a table.

    The table of order.placed is order_placed, or "order.placed" in quotes. It has every event in the jobs'
    table or in the log, exactly once, from the moment when it is published. Without --tables, it has the events in
    the log.

    --tables is a folder such as data/tables, an s3:// prefix, `glue` for Glue's catalog, or the URL of a REST catalog,
    whose token NAKADI_CATALOG_TOKEN has.

    --data is the data folder of a broker on this machine, whether one runs on it or not: the query has the events in
    its data file, its archive and its tables.
    """
    if form and parquet is not None:
        raise BadInput(f"Choose one of --{form} and --parquet.")
    show: Callable[[Answer], None] = {"json": _show_json, "csv": _show_csv}.get(form or "", _show_table)
    with _query_failures(), noticing_signals():
        from nakadi_sql import HttpSource, Limits, ask, open_tables

        limits = Limits(seconds=bounds["timeout"], megabytes=bounds["memory"], rows=bounds["max_rows"])
        with ExitStack() as opened:
            if data is None:
                connection = chosen_connection().of_client
            else:
                from nakadi_sql.data_folder import serve_data_folder, tables_in

                connection, tables = opened.enter_context(serve_data_folder(data)), tables or tables_in(data)
            places = None if tables is None else open_tables(tables, database, os.environ.get("NAKADI_CATALOG_TOKEN"))
            source = opened.enter_context(HttpSource(connection, print_note))
            answer = opened.enter_context(ask(query, source, places, limits))
            if parquet is None:
                show(answer)
            else:
                _write_parquet(answer, parquet)
            if answer.is_cut:
                raise PartlyFailed(
                    f"The result has more than {limits.rows} rows, and these are the first: see --max-rows."
                )


@contextmanager
def _query_failures() -> Iterator[None]:
    """Turn the errors of a query into failures of a command."""
    try:
        from nakadi_cli.patience import client_failures
        from nakadi_sql import BadQuery, QueryStopped
    except ModuleNotFoundError as missing:
        raise Failed(f"{missing.name} is missing: pip install 'nakadi-serverless[cli,sql]'") from missing
    with client_failures():
        try:
            yield
        except ModuleNotFoundError as missing:
            raise Failed(f"{missing.name} is missing: pip install 'nakadi-serverless[cli,sql,aws]'") from missing
        except BadQuery as error:
            raise BadInput(harmless(" ".join(str(error).split()))) from error
        except QueryStopped as error:
            raise Failed(harmless(" ".join(str(error).split()))) from error


def _show_table(answer: Answer) -> None:
    from nakadi_sql.values import value_text

    rows = [[value_text(value) for value in row] for row in answer.rows()]
    show_value(rows, "table", {name: itemgetter(number) for number, name in enumerate(answer.names)})


def _show_json(answer: Answer) -> None:
    from nakadi_sql.values import json_line

    for row in answer.rows():
        click.echo(harmless_json(json_line(answer.names, row)))


def _show_csv(answer: Answer) -> None:
    from nakadi_sql.values import value_text

    written = csv.writer(sys.stdout, lineterminator="\n")
    written.writerow(answer.names)
    for row in answer.rows():
        written.writerow([value_text(value) for value in row])


def _write_parquet(answer: Answer, file: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([field.with_name(name) for field, name in zip(answer.schema, answer.names, strict=True)])
    try:
        with parquet.ParquetWriter(file, schema, compression="zstd") as written:
            for batch in answer.batches():
                written.write_batch(batch.rename_columns(answer.names))
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{file} cannot be written: {error}") from error
