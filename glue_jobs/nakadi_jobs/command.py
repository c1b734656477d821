"""The command line that all jobs share, on a laptop and on Glue, and the stores that it opens."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct
from pyspark.sql import SparkSession

from nakadi.app.engines import log_index_url as log_index_url_of_broker
from nakadi.app.engines import open_log_index, open_registry
from nakadi.app.settings import Settings
from nakadi.common.caching import Cache
from nakadi.engines.archive.presence import is_archive_of
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.sqlite.file import BadDataFile
from nakadi.event_types.repository import EventTypes
from nakadi.model.event_type import EventType
from nakadi.model.log_index import ArchiveLocation
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore
from nakadi.ports.clock import Clock, SystemClock
from nakadi.ports.log_index import LogIndex
from nakadi.ports.registry import Registry
from nakadi_jobs.file_counts import TableFiles
from nakadi_jobs.gathering import Archive
from nakadi_jobs.leftovers import GATHERED_FOLDER
from nakadi_jobs.reports import NOT_DONE, Report, show_progress
from nakadi_jobs.run_ledger import RunLedger
from nakadi_jobs.session import CATALOGS, BadCatalog, NoSpark, open_spark
from nakadi_jobs.spans import Spans, open_spans

Number = TypeVar("Number", int, float)

MAX_FILE_BYTES = 1 << 20
"""The greatest size of a file that an argument names."""


class BadArguments(Exception):
    """Raised for arguments that contradict each other; the message names them."""


class JobContext(Struct, frozen=True):
    """The stores, the session and the options of a run."""

    spark: SparkSession
    registry: Registry
    event_types: EventTypes
    index: LogIndex
    store: ArchiveStore
    archive: Archive
    clock: Clock
    database: str
    tables: str
    table_files: ArchiveStore
    report: Report
    runs: RunLedger
    spans: Spans
    options: argparse.Namespace

    def selected_event_types(self) -> Iterator[EventType]:
        """The event types that the command line names, or all."""
        names = self.options.event_types
        return (each for each in self.event_types.all() if not names or each.name in names)

    def files_of_tables(self) -> TableFiles:
        """Where the files of tables are, for Spark's tasks too."""
        url = f"{self.tables}?{urlsplit(self.archive.url).query}".rstrip("?")
        return TableFiles(self.spark, self.table_files, url)

    def check_archive(self) -> None:
        """Raise `Unavailable` if the archive has none of the objects that the log index names, because it is the wrong
        archive.
        """
        if not is_archive_of(self.index, self.store):
            raise Unavailable(
                f"The archive {self.archive.url} has none of the objects that the log index names. "
                "Name the archive of the broker with --archive or NAKADI_ARCHIVE; is its file system mounted?"
            )

    def show(self, table: str) -> None:
        """Print the result of the job to standard output; messages go to standard error."""
        print(table, flush=True)

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Hold a lock with this name on this machine. Nothing else prevents two commits to a table in a folder at the
        same time.
        """
        folder = local_folder(self.tables)
        if folder is None:
            yield
            return
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def parser(job: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all jobs have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m nakadi_jobs.{job}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=EXIT_CODES,
    )
    places = parser.add_argument_group("places", "Without any of these: the data folder of `make run`.")
    places.add_argument("--data", default="data", help="the broker's data folder, default ./data")
    places.add_argument(
        "--registry", help="as NAKADI_REGISTRY, which is the default; without it sqlite:///DATA/nakadi.db"
    )
    places.add_argument("--log-index", help="as NAKADI_LOG_INDEX, which is the default; without it as for the broker")
    places.add_argument("--archive", help="as NAKADI_ARCHIVE, which is the default; without it DATA/archive")
    places.add_argument("--tables", help="folder or s3:// prefix of the tables; default DATA/tables")
    places.add_argument(
        "--catalog", choices=CATALOGS, default="hadoop", help="the catalog of the tables, default hadoop"
    )
    places.add_argument("--catalog-uri", help="URL of the catalog rest")
    places.add_argument("--warehouse", help="its name in a rest catalog, or the ARN of the table bucket for s3tables")
    places.add_argument(
        "--catalog-properties",
        help="file or s3:// object with further properties of the catalog, such as token=…, one on each line",
    )
    places.add_argument("--database", default="nakadi", help="the tables' database, default nakadi")
    places.add_argument("--report", help="folder or s3:// prefix to write a report of the run to, as JSON")
    places.add_argument(
        "--traces",
        default=os.environ.get("NAKADI_TRACES", ""),
        help="otlp sends spans of the run and its steps, as the variables OTEL_… say; default NAKADI_TRACES, or none",
    )
    work = parser.add_argument_group("work")
    work.add_argument(
        "--event-types", type=_split_words, default=(), help="only these, separated by commas; default all"
    )
    work.add_argument("--master", help="Spark's master, default local[*], or on Glue the one that Glue sets")
    work.add_argument("--memory", default="2g", help="memory of a Spark on this machine, default 2g")
    return parser


def at_least(least: Number) -> Callable[[str], Number]:
    """Return the type of an argument that is a number of the type of `least`, and not below it."""
    kind = type(least)

    def parse(text: str) -> Number:
        number = kind(text)
        if not number >= least:  # NaN is not
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return number

    parse.__name__ = kind.__name__  # argparse names it in the message about a text that is no number
    return parse


def moment(text: str) -> datetime:
    """Parse an argument that is a moment. One without an offset would mean another moment on each machine."""
    with suppress(ValueError):
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found
    raise argparse.ArgumentTypeError(f"{text} is no RFC 3339 time, such as 2026-11-21T12:00:00Z")


EXIT_CODES = """\
Exit codes: 0 done, perhaps with warnings; 3 done, except for what the last lines list; 1 not done; 2 wrong arguments.
A run can be repeated at any time, also after it was killed: nothing is done twice."""

GLUE_ARGUMENTS = (
    "JOB_ID",
    "JOB_NAME",
    "JOB_RUN_ID",
    "SECURITY_CONFIGURATION",
    "WORKFLOW_NAME",
    "WORKFLOW_RUN_ID",
    "RedshiftTempDir",
    "TempDir",
    "additional-python-modules",
    "auto-scale-within-microbatch",
    "class",
    "conf",
    "datalake-formats",
    "debug",
    "encryption-type",
    "endpoint",
    "executor-cores",
    "executor-memory",
    "mode",
    "number-of-workers",
    "packages",
    "pip-install",
    "python-modules-installer-option",
    "scriptLocation",
    "security-configuration",
    "use-postgres-driver",
    "user-jars-first",
    "worker-type",
)
"""The arguments, or beginnings of arguments, that Glue adds or uses itself.

Other unknown arguments are errors on Glue too: a job that ignored a misspelled event type name would process all event
types."""

GLUE_PREFIXES = (
    "continuous-log-",
    "customer-driver-",
    "customer-executor-",
    "disable-",
    "enable-",
    "extra-",
    "job-",
    "spark-",
    "write-shuffle-",
)


PASS_THROUGH_ARGUMENTS = ("--conf", "--python-modules-installer-option")
"""Arguments whose values are options of Spark and pip, and may look like arguments."""


def options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments without those that Glue adds. Unknown arguments are errors."""
    known, others = parser.parse_known_args(arguments)
    foreign = _drop_glue_arguments(others)
    if foreign:
        parser.error(f"unknown arguments: {' '.join(foreign)}")
    return known


def run(job: str, known: argparse.Namespace, work: Callable[[JobContext], None], *, has_one_trace: bool = True) -> int:
    """Open the stores that the arguments name, run the job, print its summary, and return the exit code.

    With `has_one_trace`, the whole run is a trace; otherwise, the job begins its traces itself.
    """
    clock = SystemClock()
    report = Report(job, clock.now())
    try:
        with ExitStack() as stack:
            workplace = open_context(known, report, clock, stack)
            if local_folder(workplace.archive.url) is not None:
                workplace.check_archive()  # with a bucket, this would read the whole index in each run
            print(f"{job}: begun", file=sys.stderr, flush=True)
            stack.enter_context(show_progress(workplace.spark, report))
            with workplace.spans.of_run(job) if has_one_trace else nullcontext():
                work(workplace)
    except (BadArguments, BadCatalog, BadSetting, BadDataFile, NoSpark, Unavailable) as reason:
        print(f"{job}: cannot be done. {reason}", file=sys.stderr)
        return NOT_DONE
    except Exception:  # noqa: BLE001  # the traceback is printed, and the exit code says that the job failed
        traceback.print_exc()
        print(f"{job}: not done. It can be run again.", file=sys.stderr)
        return NOT_DONE
    if known.report:
        write(known.report, f"{job}-{report.started_at:%Y-%m-%dT%H-%M-%S}.json", report.document(clock.now()).encode())
    print(report.summary(), file=sys.stderr)
    return report.exit_code


def open_context(known: argparse.Namespace, report: Report, clock: Clock, stack: ExitStack) -> JobContext:
    data, registry_place = Path(known.data).absolute(), registry_url(known)
    archive_url = with_scheme(known.archive or os.environ.get("NAKADI_ARCHIVE") or str(data / "archive"))
    tables = with_scheme(known.tables or str(data / "tables"))
    registry = stack.enter_context(closing(open_registry(registry_place)))
    index = stack.enter_context(closing(open_log_index(log_index_url(known))))
    store = stack.enter_context(closing(open_archive(archive_url)))
    master = known.master or ("local[*]" if known.catalog in {"hadoop", "rest"} else "")
    spark = open_spark(report.job, tables, known.catalog, master, known.memory, _catalog_properties(known))
    # The tables are in the same region and account as the archive.
    query = urlsplit(archive_url).query
    gathered_url = f"{tables.rstrip('/')}/{GATHERED_FOLDER}"
    gathered, table_files = (
        stack.enter_context(closing(open_archive(f"{url}?{query}".rstrip("?")))) for url in (gathered_url, tables)
    )
    return JobContext(
        spark=spark,
        registry=registry,
        event_types=EventTypes(registry, Cache(clock, 1)),
        index=index,
        store=store,
        archive=Archive(spark, store, archive_url, gathered, gathered_url),
        clock=clock,
        database=known.database,
        tables=tables,
        table_files=table_files,
        report=report,
        runs=RunLedger(report.job, clock),
        spans=stack.enter_context(closing(open_spans(known.traces))),
        options=known,
    )


def registry_url(known: argparse.Namespace) -> str:
    """The URL of the registry. Raises `BadArguments`."""
    data = Path(known.data).absolute()
    named = known.registry or os.environ.get("NAKADI_REGISTRY")
    if not (named or known.log_index or data.is_dir()):
        raise BadArguments(f"There is no folder {data}; --data names the broker's.")
    return named or f"sqlite:///{data / 'nakadi.db'}"


def log_index_url(known: argparse.Namespace) -> str:
    """The URL of the archive's index, found as the broker finds it."""
    if known.log_index:
        return str(known.log_index)
    data_file = f"sqlite:///{Path(known.data).absolute() / 'nakadi.db'}"
    return log_index_url_of_broker(
        Settings(
            registry=registry_url(known),
            event_log=os.environ.get("NAKADI_EVENT_LOG") or data_file,
            log_index=os.environ.get("NAKADI_LOG_INDEX", ""),
        )
    )


def _catalog_properties(known: argparse.Namespace) -> Mapping[str, str]:
    """The properties of the catalog, from the arguments and from a file, which may hold passwords."""
    lines = read(known.catalog_properties).splitlines() if known.catalog_properties else []
    pairs = [line.partition("=") for line in lines if line.strip() and not line.startswith("#")]
    if any(not (name.strip() and equals) for name, equals, _ in pairs):
        raise BadArguments(f"{known.catalog_properties} has lines that are not like name=value.")
    said = {"uri": known.catalog_uri, "warehouse": known.warehouse}
    return {
        **{name: value for name, value in said.items() if value},
        **{name.strip(): value.strip() for name, _, value in pairs},
    }


def read(file: str) -> str:
    """Return the text of a file or of an object in a bucket. Raises `BadArguments`."""
    folder, _, name = with_scheme(file).rpartition("/")
    try:
        with closing(open_archive(folder)) as store:
            return store.read_range(ArchiveLocation(name, 0, MAX_FILE_BYTES)).decode()
    except (ArchiveObjectGone, UnicodeDecodeError) as error:
        raise BadArguments(f"{file} cannot be read.") from error


def write(place: str, name: str, content: bytes) -> None:
    """Write a file to a folder or a bucket."""
    with closing(open_archive(with_scheme(place))) as store:
        store.put(name, content)


def with_scheme(place: str) -> str:
    """A URL; a plain folder becomes a `file:` URL."""
    return place if urlsplit(place).scheme else f"file://{Path(place).absolute()}"


def local_folder(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(parts.path) if parts.scheme == "file" else None


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _drop_glue_arguments(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments without those that Glue added. Each of Glue's may have a value, after `=` or as the next
    word.
    """
    foreign, may_be_value = [], False
    for before, each in pairwise(("", *arguments)):
        if each.startswith("--") and before not in PASS_THROUGH_ARGUMENTS:
            is_glues = _is_glue_argument(each)
            may_be_value = is_glues and "=" not in each
        else:
            is_glues, may_be_value = may_be_value, False
        if not is_glues:
            foreign.append(each)
    return foreign


def _is_glue_argument(argument: str) -> bool:
    name = argument.removeprefix("--").partition("=")[0]
    return name in GLUE_ARGUMENTS or name.startswith(GLUE_PREFIXES)


def choices(parser: argparse.ArgumentParser, name: str, values: Sequence[str], **more: Any) -> None:
    """Add an argument that is positional on a laptop and named on Glue."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(name, nargs="?", choices=values, default=None, **more)
    group.add_argument(f"--{name}", dest=f"{name}_named", choices=values, help=argparse.SUPPRESS)
