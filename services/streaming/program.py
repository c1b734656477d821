"""The program that serves streams behind the load balancer: `python -m services.streaming`.

The usual NAKADI_* variables name its stores and its token issuer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from nakadi.app import logs
from nakadi.app.broker import open_broker, open_tracer_if_set
from nakadi.app.routes import DIRECT_AREAS, STREAMING_AREAS, make_application
from nakadi.app.settings import read_settings
from nakadi.app.shutdown import ShutdownDeadline, SignalHandler, serve_until_signalled
from nakadi.http.asgi import RequestLimits
from nakadi.http.memory import tune_allocator
from nakadi.http.server import Server, new_event_loop, open_listening_socket, tune_interpreter
from nakadi.model.outcomes import BadSetting, Unavailable
from services.streaming.certificate import tls
from services.streaming.doorway import Doorway, report_figures

CANNOT_START = 1
CLOSING_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None, *, signals: SignalHandler) -> int:
    options = _options(arguments)
    tune_allocator()
    logs.set_up_logging(json_lines=True, level=options.log_level, access_log=False)
    try:
        _run(options, os.environ, signals)
    except (BadSetting, Unavailable, OSError) as reason:
        print(f"The streaming service cannot start. {reason}", file=sys.stderr)
        return CANNOT_START
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="streaming", description="Serve streams of events.")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: only this machine can connect")
    parser.add_argument("--port", type=int, default=8080, help="default 8080; 0 chooses a free one")
    parser.add_argument("--threads", type=int, default=64, help="requests at the same time, default 64")
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=90,
        help="from SIGTERM to the end; less than the stop timeout",
    )
    parser.add_argument(
        "--keep-alive-seconds", type=int, default=75, help="longer than the load balancer's idle timeout"
    )
    parser.add_argument("--prefix", default="", help="a prefix that a gateway may add to paths, for example /api")
    parser.add_argument(
        "--direct", action="store_true", help="serve publishing and subscriptions too, for clients without a gateway"
    )
    parser.add_argument("--tls", action="store_true", help="use TLS with a self-signed certificate, created at start")
    parser.add_argument("--name", default="streaming", help="the name for its metrics")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, environ: Mapping[str, str], signals: SignalHandler) -> None:
    settings = read_settings(environ)
    with (
        ShutdownDeadline(options.grace_seconds) as grace,
        open_listening_socket(options.host, options.port) as listening,
        contextlib.closing(open_broker(settings, tracer=open_tracer_if_set(settings))) as broker,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        broker.prepare_for_requests()
        doorway = Doorway(
            make_application(broker, *STREAMING_AREAS, *(DIRECT_AREAS if options.direct else ()), "monitoring"),
            options.prefix,
        )
        tune_interpreter()
        server = Server(
            doorway,
            threads=options.threads,
            # The remaining time is for closing the streams' resources.
            grace_seconds=max(0.8 * options.grace_seconds, options.grace_seconds - CLOSING_SECONDS),
            keep_alive_seconds=options.keep_alive_seconds,
            limits=RequestLimits(max_memory_bytes=settings.max_request_memory_bytes),
            metrics=broker.metrics,
            served_hosts=settings.served_hosts_at(listening.getsockname()[0]),
            closes_after_streams=False,
            side_tasks=broker.side_tasks,
        )
        greeting = f"Streaming on port {listening.getsockname()[1]}"
        encrypted = tls() if options.tls else None

        async def serve(stopping: asyncio.Event) -> None:
            reporting = asyncio.create_task(report_figures(broker.metrics, options.name))
            try:
                await server.serve(listening, stopping, ssl_context=encrypted)
            finally:
                reporting.cancel()

        runner.run(serve_until_signalled(serve, signals, grace, partial(print, greeting, flush=True)))
