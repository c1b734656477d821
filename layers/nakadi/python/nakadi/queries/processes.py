"""The child processes that answer queries: how they start, which limits they have, and how they end.

    url, tables = "http://127.0.0.1:8080", TablesPlace("data/tables")
    processes = QueryProcesses(limits, broker_url=url, tables=tables, environ=os.environ)
    body = await processes.answer("select 1", token=None, is_client_gone=lambda: False)

A child is `python -m nakadi_sql`. The child reads its order, a line of JSON, from standard input, which stays open: if
standard input closes, for example because this process has died, the child ends. It answers with a line of JSON, the
`_Verdict`, and after it the body for the client, which this process passes on unread.
"""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore
from typing import Any

import msgspec
from msgspec import Struct

from nakadi.common.converting import Converter
from nakadi.common.waiting import CallThreads, ThreadCall
from nakadi.model.outcomes import FeatureSwitchedOff, Invalid, NotPermitted, Outcome, TryLater, Unavailable

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 4_000_000
"""The longest body of an answer."""

PATIENCE_SECONDS = 15.0
"""How long a child may take beyond the time of its query: to start on a busy machine, and to answer."""

POLL_SECONDS = 0.1

REQUIRED_PACKAGES = ("duckdb", "duckdb_extension_avro", "duckdb_extension_iceberg", "httpx", "pyarrow")

PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""The only environment variables of this process that every child gets: others may be secret."""

VARIABLES_FOR_REMOTE_TABLES = ("AWS_", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_")
"""The prefixes of further variables that a child gets if the tables may be in a bucket."""

VARIABLES_FOR_REST_CATALOG = ("NAKADI_CATALOG_TOKEN",)

VARIABLES_OF_FUNCTION = ("AWS_LAMBDA_",)
"""The prefixes of variables that no child gets: by them, the process of a Lambda function finds its invocations."""

SWITCHED_OFF_MESSAGE = "This broker does not offer queries"
TOO_MANY_MESSAGE = "Too many queries are running, please repeat request"
TABLES_UNREADABLE_MESSAGE = "The broker cannot read the tables of these events; its log says why"
ABANDONED_MESSAGE = "The query was given up, because the client closed its connection or the broker is about to end"

OUTCOME_BY_KIND: Mapping[str, type[Outcome]] = {
    "bad_query": Invalid,
    "stopped": Invalid,
    "not_permitted": NotPermitted,
    "package_missing": FeatureSwitchedOff,
    "no_answer": TryLater,
}
"""The outcomes that a child may report instead of an answer, by kind."""


class QueryLimits(Struct, frozen=True, kw_only=True):
    """The limits for all queries of this process, and for each query. `at_once` is 0 if queries are off.

    A child is killed after `child_seconds`; None means `PATIENCE_SECONDS` after the `seconds` of its query. Rows beyond
    `answer_bytes` are left out.
    """

    at_once: int
    seconds: int
    megabytes: int
    rows: int
    child_seconds: float | None = None
    answer_bytes: int = MAX_ANSWER_BYTES


class TablesPlace(Struct, frozen=True):
    """Where children find the tables: `place` is what `nakadi sql --tables` takes, or empty if there are none."""

    place: str
    database: str = "nakadi"

    def for_child(self) -> str | None:
        """The place as an absolute path, because a child has another working folder; None without tables."""
        if self.place == "glue" or "://" in self.place:
            return self.place
        return str(Path(self.place).absolute()) if self.place else None

    def variables(self) -> tuple[str, ...]:
        """The prefixes of the variables that a child needs to read the tables. The tables of a REST catalog may be in a
        bucket.
        """
        if self.place.startswith(("http://", "https://")):
            return VARIABLES_FOR_REMOTE_TABLES + VARIABLES_FOR_REST_CATALOG
        return VARIABLES_FOR_REMOTE_TABLES if self.place == "glue" or self.place.startswith("s3://") else ()


class QueryProcessFailed(Exception):
    """Raised when a child has failed; the text is for the log."""


class _Verdict(Struct):
    """`kind` is `answer`, a key of `OUTCOME_BY_KIND`, or `tables_unreadable` or `failed` with a text for the log."""

    kind: str
    detail: str = ""


_VERDICTS = Converter(_Verdict)


class QueryProcesses:
    """`broker_url` is the URL at which children reach this broker. Of `environ`, children get only the variables that
    they need.
    """

    def __init__(
        self, limits: QueryLimits, *, broker_url: str, tables: TablesPlace, environ: Mapping[str, str]
    ) -> None:
        self._limits = limits
        self._broker_url = broker_url
        self._tables = tables
        self._environ = _childs_environment(environ, tables)
        self._free = BoundedSemaphore(max(limits.at_once, 1))
        self._threads = CallThreads("nakadi-query", max(limits.at_once, 1))

    def close(self) -> None:
        self._threads.close()

    async def answer(self, sql: str, token: str | None, is_client_gone: Callable[[], bool]) -> bytes:
        """The answer to a query, as JSON. Raises an outcome for a query that is refused or stopped."""
        if self._limits.at_once == 0:
            raise FeatureSwitchedOff(SWITCHED_OFF_MESSAGE)
        missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
        if missing:
            raise FeatureSwitchedOff(f"{missing[0]} is missing: pip install 'nakadi-serverless[sql]'")
        if not self._free.acquire(blocking=False):
            raise TryLater(TOO_MANY_MESSAGE)
        order = {
            "sql": sql,
            "url": self._broker_url,
            "token": token,
            "tables": self._tables.for_child(),
            "database": self._tables.database,
            "seconds": self._limits.seconds,
            "megabytes": self._limits.megabytes,
            "rows": self._limits.rows,
            "bytes": self._limits.answer_bytes,
        }
        return await ThreadCall(self._threads, partial(self._run, msgspec.json.encode(order), is_client_gone))

    def _run(self, order: bytes, is_client_gone: Callable[[], bool]) -> bytes:
        """Run a child in this thread, and at the end allow another query in its place."""
        try:
            return _read_answer(self._run_child(order, is_client_gone), self._limits)
        finally:
            self._free.release()

    def _run_child(self, order: bytes, is_client_gone: Callable[[], bool]) -> bytes:
        """Run a child, and return its output. The child's folder is for data that does not fit into its memory, and is
        removed when it has ended.
        """
        with TemporaryDirectory(prefix="nakadi-query-") as folder:
            try:
                child = subprocess.Popen(  # the program is the broker's own
                    [sys.executable, "-P", "-m", "nakadi_sql"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    # A function on AWS has no home, which DuckDB may look for.
                    env={"HOME": folder, **self._environ, "TMPDIR": folder},
                    cwd=folder,
                    start_new_session=True,
                    bufsize=0,
                )
            except OSError as error:
                raise Unavailable(f"The process of a query cannot be started: {error}") from error
            with child:
                try:
                    return self._converse(child, order, is_client_gone)
                finally:
                    child.kill()

    def _converse(self, child: subprocess.Popen[bytes], order: bytes, is_client_gone: Callable[[], bool]) -> bytes:
        """Send the child its order, and return all of its output."""
        deadline = time.monotonic() + (self._limits.child_seconds or self._limits.seconds + PATIENCE_SECONDS)
        unsent, said = memoryview(order + b"\n"), bytearray()
        assert child.stdin is not None
        assert child.stdout is not None
        # This thread must not wait for a child that does not read.
        for each in (child.stdin, child.stdout):
            _set_nonblocking(each)
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdin, selectors.EVENT_WRITE)
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                if is_client_gone():
                    raise TryLater(ABANDONED_MESSAGE)
                if time.monotonic() > deadline:
                    raise Invalid(f"The query took more than {self._limits.seconds} seconds.")
                for key, _ in selector.select(POLL_SECONDS):
                    if key.fileobj is child.stdin:
                        unsent = unsent[_write(child.stdin, unsent) :]
                        if not unsent:
                            selector.unregister(child.stdin)
                        continue
                    piece = child.stdout.read(65_536)
                    if not piece:
                        return bytes(said)
                    said += piece
                    if len(said) > 2 * MAX_ANSWER_BYTES:
                        raise QueryProcessFailed("it says more than it may")


def _read_answer(said: bytes, limits: QueryLimits) -> bytes:
    """The body for the client. Raises the outcome that the child reports instead."""
    head, _, body = said.partition(b"\n")
    if not head:
        # The child was killed, by the operating system or because it requested too much memory.
        raise Invalid(f"The process of the query has ended early. It may have needed more than {limits.megabytes} MB.")
    verdict = _VERDICTS.from_builtins(msgspec.json.decode(head))
    if verdict.kind == "answer":
        return body
    if outcome := OUTCOME_BY_KIND.get(verdict.kind):
        raise outcome(verdict.detail)
    if verdict.kind == "tables_unreadable":
        raise Unavailable(verdict.detail, public=TABLES_UNREADABLE_MESSAGE)
    raise QueryProcessFailed(verdict.detail)


def _write(pipe: Any, data: memoryview) -> int:
    """Write to a pipe, and return how many bytes were written. If the child has ended, everything counts as written:
    the end is noticed when its output is read.
    """
    try:
        return pipe.write(data) or 0
    except BrokenPipeError:
        return len(data)


def _set_nonblocking(pipe: Any) -> None:
    os.set_blocking(pipe.fileno(), False)


def _childs_environment(environ: Mapping[str, str], tables: TablesPlace) -> Mapping[str, str]:
    """The environment of children, which find packages where this process finds them."""
    passed = {name: environ[name] for name in PASSED_VARIABLES if name in environ}
    passed |= {
        name: value
        for name, value in environ.items()
        if name.startswith(tables.variables()) and not name.startswith(VARIABLES_OF_FUNCTION)
    }
    return {**passed, "PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path)}
