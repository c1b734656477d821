"""The program: `python -m nakadi.local --port 8080 --data data`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from nakadi.app import logs
from nakadi.app.broker import open_broker, open_tracer_if_set
from nakadi.app.engines import data_file_paths
from nakadi.app.settings import Settings, read_settings
from nakadi.app.shutdown import ShutdownDeadline, SignalHandler, serve_until_signalled
from nakadi.engines.sqlite.file import SCHEME, BadDataFile
from nakadi.engines.sqlite.mark import Marker, check_against_mark
from nakadi.http.memory import tune_allocator
from nakadi.http.server import new_event_loop, open_listening_socket, tune_interpreter
from nakadi.local.cores import default_workers, usable_cores
from nakadi.local.serving import Housekeeper, make_server, run_chores, server_url
from nakadi.local.supervisor import check_workers, supervise, worker_command
from nakadi.local.worker import add_logging_options, logging_options
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.clock import SystemClock

EXIT_CODE_CANNOT_START = 1
DATA_FILE = "nakadi.db"
WORKERS_VARIABLE = "NAKADI_WORKERS"
# How often marks are written. If another program damages the data file, events that were acknowledged since the last
# mark can be lost unnoticed.
MARK_INTERVAL_SECONDS = 5.0

# From the signal to the end of the process: less than the ten seconds after which Docker, for one, kills it.
PROGRAM_EXIT_TIMEOUT_SECONDS = 9.0


def main(arguments: Sequence[str] | None = None, *, signals: SignalHandler) -> int:
    options = _parse_options(arguments)
    tune_allocator()
    logs.set_up_logging(json_lines=options.log_format == "json", level=options.log_level, access_log=options.access_log)
    try:
        return _run(options, os.environ, signals)
    except (BadSetting, BadDataFile, Unavailable) as reason:
        print(f"The broker cannot start. {reason}", file=sys.stderr)
        return EXIT_CODE_CANNOT_START


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m nakadi.local",
        description="A Nakadi event broker on this machine.",
        epilog="NAKADI_* environment variables set everything else; docs/operations.md explains them.",
    )
    parser.add_argument("--port", type=int, default=8080, help="default 8080; 0 chooses a free one")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: only this machine can connect")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder for the data file, default ./data")
    parser.add_argument("--engine", choices=("sqlite", "memory"), default="sqlite", help="memory writes no files")
    parser.add_argument(
        "--workers",
        type=int,
        help="how many processes answer requests, of which the first writes for all; by default one for each core",
    )
    parser.add_argument("--accept-loss", action="store_true", help="start even if the data file has lost data")
    add_logging_options(parser)
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, environ: Mapping[str, str], signals: SignalHandler) -> int:
    variables = _variables_with_options(options, environ)
    settings = read_settings(variables)
    if WORKERS_VARIABLE not in variables:
        settings = replace(settings, workers=default_workers(settings, usable_cores()))
        variables = {**variables, WORKERS_VARIABLE: str(settings.workers)}
    if SCHEME + str(options.data / DATA_FILE) in (settings.registry, settings.event_log):
        _check_writable(options.data)
    with ShutdownDeadline(PROGRAM_EXIT_TIMEOUT_SECONDS) as grace, _open_socket(options.host, options.port) as listening:
        greeting = _greeting(server_url(options.host, listening.getsockname()[1]), settings)
        greet = partial(print, greeting, flush=True)
        with _mark_data_files(data_file_paths(settings.store_urls), accept_loss=options.accept_loss):
            if settings.workers == 1:
                return _serve(settings, listening, signals, grace, greet)
            check_workers(settings)
            address, port = listening.getsockname()[:2]
            settings.served_hosts_at(address)  # otherwise each worker would report this mistake
            command = worker_command(
                settings, variables, [f"--bound={address}", f"--port={port}", *logging_options(options)]
            )
            return supervise(settings, command, listening, signals, grace, greet)


def _serve(
    settings: Settings,
    listening: socket.socket,
    signals: SignalHandler,
    grace: ShutdownDeadline,
    greet: Callable[[], None],
) -> int:
    with (
        contextlib.closing(open_broker(settings, tracer=open_tracer_if_set(settings))) as broker,
        run_chores(broker),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        broker.prepare_for_requests()
        server = make_server(broker, settings, listening.getsockname()[:2])
        tune_interpreter()
        runner.run(serve_until_signalled(partial(server.serve, listening), signals, grace, greet))
    return 0


@contextlib.contextmanager
def _mark_data_files(paths: Sequence[Path], *, accept_loss: bool) -> Iterator[None]:
    """Check data files before anything opens them, and mark their progress until everything is closed."""
    above = {path: check_against_mark(path, accept_loss=accept_loss) for path in paths}
    with contextlib.ExitStack() as stack:
        for path, number in above.items():
            marker = stack.enter_context(contextlib.closing(Marker(path, SystemClock().now, above=number)))
            marker.write_mark_if_changed()
            stack.enter_context(
                contextlib.closing(Housekeeper(marker.write_mark_if_changed, every_seconds=MARK_INTERVAL_SECONDS))
            )
        yield


def _variables_with_options(options: argparse.Namespace, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with options as defaults: variables take precedence over options, so that they can name another
    registry or log.
    """
    engine = "memory:" if options.engine == "memory" else f"{SCHEME}{options.data / DATA_FILE}"
    archive = "" if options.engine == "memory" else str(options.data / "archive")
    tables = "" if options.engine == "memory" else str(options.data / "tables")
    chosen = {"NAKADI_REGISTRY": engine, "NAKADI_EVENT_LOG": engine, "NAKADI_TABLES": tables}
    event_log = environ.get("NAKADI_EVENT_LOG", engine)
    if event_log == engine or event_log.startswith("kafka:"):
        chosen["NAKADI_ARCHIVE"] = archive
    workers = {} if options.workers is None else {WORKERS_VARIABLE: str(options.workers)}
    return {**chosen, **environ, **workers}


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadSetting(f"Nothing can be written to the folder {folder}: {error.strerror}.") from error


def _open_socket(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise BadSetting(f"There is no port {port}: ports go from 0 to 65535.")
    try:
        return open_listening_socket(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadSetting(
                f"Port {port} is in use: stop the program that uses it, or choose another with --port."
            ) from error
        raise BadSetting(f"Port {port} of {host} cannot be had: {error.strerror}.") from error


def _greeting(url: str, settings: Settings) -> str:
    kept = sorted({_describe_location(settings.registry), _describe_location(settings.event_log)})
    archive = [f"Old events move to {settings.archive}"] if settings.archive else []
    token = ' -H "Authorization: Bearer $TOKEN"' if settings.auth != "off" else ""
    example = (
        '{"name":"hello.world","owning_application":"me","category":"undefined",'
        '"schema":{"type":"json_schema","schema":"{}"}}'
    )
    return f"""\
Nakadi is ready at {url}
{chr(10).join([f"Everything is kept in {' and '.join(kept)}", *archive, _describe_processes(settings.workers)])}

  curl {url}/health
  curl{token} -H 'Content-Type: application/json' -d '{example}' {url}/event-types
  curl{token} {url}/event-types

The console is at {url}/console

Ctrl-C ends it."""


def _describe_processes(workers: int) -> str:
    first = os.getpid()
    if workers == 1:
        return f"One process answers requests: {first}"
    return (
        f"{workers} processes answer requests: {first} and its children (pgrep -P {first} lists them);"
        " --workers 1 starts one"
    )


def _describe_location(engine: str) -> str:
    return "memory, until it ends" if engine == "memory:" else engine.removeprefix(SCHEME)
