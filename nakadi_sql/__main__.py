"""Answers one query in a separate process for a broker: `python -m nakadi_sql`, which `nakadi.queries` starts.

Standard input has an `Order` as a line of JSON. Standard output gets a line with the kind of the answer and, if the
query succeeded, the body of the response after it.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from contextlib import suppress
from threading import Thread

import msgspec

from nakadi_client import Connection, NoAnswer, Refused
from nakadi_sql import BadQuery, HttpSource, QueryStopped, open_tables
from nakadi_sql.errors import NoTable, PackageMissing, TablesUnreadable
from nakadi_sql.values import json_array

OWN_MEGABYTES = 512
"""The memory for Python and Arrow, and for those parts of DuckDB that its own limit does not count."""

NICENESS = 10
"""How much to lower the priority of a query, so that the broker gets processor time first."""

MAX_OPEN_FILES = 256


class Order(msgspec.Struct):
    """A query, the broker to read from, and the limits of the query. `tables` is the `place` for `open_tables`."""

    sql: str
    url: str
    seconds: float
    megabytes: int
    rows: int
    bytes: int
    token: str | None = None
    tables: str | None = None
    database: str = "nakadi"


class Column(msgspec.Struct):
    """A column of the result, with its type as DuckDB writes it."""

    name: str
    type: str


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    _limit_process(order)
    Thread(target=_end_with_parent, name="nakadi-sql-parent", daemon=True).start()
    kind, text = answer_order(order)
    if kind == "answer":
        said = msgspec.json.encode({"kind": kind}) + b"\n" + text.encode()
    else:
        said = msgspec.json.encode({"kind": kind, "detail": text}) + b"\n"
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
    # The other thread still waits in `read`, and there is nothing left to clean up.
    os._exit(0)


def _limit_process(order: Order) -> None:
    """Let the system limit the resources of the process, in addition to DuckDB's own limits. Limits that a system does
    not support are left out.
    """
    os.nice(NICENESS)
    megabyte = 1_000_000
    for name, most in (
        ("RLIMIT_CORE", 0),
        ("RLIMIT_CPU", int(order.seconds) + 30),
        ("RLIMIT_DATA", (order.megabytes + OWN_MEGABYTES) * megabyte),
        ("RLIMIT_FSIZE", order.megabytes * megabyte),
        ("RLIMIT_NOFILE", MAX_OPEN_FILES),
    ):
        with suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (most, most))


def _end_with_parent() -> None:
    """End this process when its parent has ended. The parent sends nothing after the order, so `read` returns only when
    the other end of standard input is closed. This function runs in a thread.
    """
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def answer_order(order: Order) -> tuple[str, str]:
    """Run the query of an order. Returns the kind of the answer, and its text."""
    try:
        return "answer", _run_query(order)
    except Exception as error:  # noqa: BLE001  # the parent logs what is unknown
        kind, sentence = _refusal(error, order)
        return kind, " ".join(sentence.split()) if kind != "failed" else sentence


def _refusal(error: Exception, order: Order) -> tuple[str, str]:
    """The kind of the answer to a query that failed, and the message for the caller."""
    match error:
        case MemoryError():
            return "stopped", f"The query takes more than {order.megabytes} MB."
        case ModuleNotFoundError():
            return "package_missing", f"{error.name} is missing: pip install 'nakadi-serverless[sql,aws]'"
        case QueryStopped():
            kind = "stopped"
        case Refused(status=401 | 403):
            kind = "not_permitted"
        case Refused(status=429 | 503) | NoAnswer():
            kind = "no_answer"
        case PackageMissing():
            kind = "package_missing"
        case NoTable() | TablesUnreadable():
            kind = "tables_unreadable"
        case BadQuery() | Refused():
            kind = "bad_query"
        case _:
            return "failed", "".join(traceback.format_exception(error))
    return kind, str(error)


def _run_query(order: Order) -> str:
    from nakadi_sql.queries import Limits, ask  # noqa: PLC0415  # within the limits

    began = time.monotonic()
    notes: list[str] = []
    limits = Limits(
        seconds=order.seconds,
        megabytes=order.megabytes,
        disk_megabytes=order.megabytes,
        rows=order.rows,
        threads=1,
    )
    token = os.environ.get("NAKADI_CATALOG_TOKEN")
    tables = None if order.tables is None else open_tables(order.tables, order.database, token)
    connection = Connection(order.url, token=order.token)
    with HttpSource(connection, notes.append) as source, ask(order.sql, source, tables, limits) as answer:
        columns = [Column(name, kind) for name, kind in zip(answer.names, answer.types, strict=True)]
        rows: list[str] = []
        size, is_cut = 0, False
        for row in answer.rows():
            text = json_array(row)
            size += len(text.encode()) + 1
            if size > order.bytes:
                if not rows:
                    raise BadQuery(f"The first row has more than {order.bytes} bytes.")
                is_cut = True
                break
            rows.append(text)
        head = {
            "columns": columns,
            "cut": is_cut or answer.is_cut,
            "notes": notes,
            "seconds": round(time.monotonic() - began, 3),
        }
        return f'{msgspec.json.encode(head).decode()[:-1]},"rows":[{",".join(rows)}]}}'


if __name__ == "__main__":
    main()
