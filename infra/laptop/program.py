"""`make run ENGINE=aws-local`: the deployment on a local port until Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

from infra.laptop.cloud import LENIENT, STRICT, DeploymentFailed, Strictness
from infra.laptop.laptop import Front, Laptop
from infra.laptop.synthesis import CACHE_FOLDER, SynthesisFailed
from nakadi.app.settings import read_settings
from nakadi.app.shutdown import SignalHandler
from nakadi.model.outcomes import BadSetting

CANNOT_START = 1

STRICT_NOTE = """
The permissions of the templates and the limits of shards, functions and the gateway are enforced.
{log}/aws.log and {log}/kinesis.log list denied requests. To act as a role, set AWS_ACCESS_KEY_ID to its name:

  {names}
"""


def main(arguments: Sequence[str] | None = None, *, signals: SignalHandler) -> int:
    options = _options(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    print("Synthesizing and deploying. The first time takes half a minute.", flush=True)  # noqa: T201  # a program
    try:
        _run(options.port, STRICT if options.strict else LENIENT, os.environ, signals)
    except (BadSetting, DeploymentFailed, SynthesisFailed, OSError) as reason:
        print(f"The deployment cannot start. {reason}", file=sys.stderr)  # noqa: T201  # as above
        return CANNOT_START
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m infra.laptop",
        description="Run the AWS deployment on this machine.",
        epilog="NAKADI_* environment variables replace those of the templates.",
    )
    parser.add_argument("--port", type=int, default=8080, help="port of the API, by default 8080; 0 for any free port")
    parser.add_argument("--strict", action="store_true", help="enforce permissions of roles and limits of AWS")
    return parser.parse_args(arguments)


def _run(port: int, strictness: Strictness, environ: Mapping[str, str], signals: SignalHandler) -> None:
    settings = {name: value for name, value in environ.items() if name.startswith("NAKADI_")}
    read_settings(settings)
    # Without an issuer in the settings, no token could be valid, so requests need none.
    authorizes = settings.pop("NAKADI_AUTH", "off") != "off"
    with Laptop(CACHE_FOLDER / "logs", settings, strictness) as laptop:
        front = laptop.front(authorizes=authorizes, port=port)
        front.warm_up()
        # A SimpleQueue is reentrant, so the signal handler may use it no matter what it interrupts.
        stopping: SimpleQueue[None] = SimpleQueue()
        with signals.stopping_on_signal(lambda: stopping.put(None)):
            print(_greeting(laptop, front, strictness, authorizes=authorizes), flush=True)  # noqa: T201  # a program
            stopping.get()


def _greeting(laptop: Laptop, front: Front, strictness: Strictness, *, authorizes: bool) -> str:
    token = ' -H "Authorization: Bearer $TOKEN"' if authorizes else ""
    example = (
        '{"name":"hello.world","owning_application":"me","category":"undefined",'
        '"schema":{"type":"json_schema","schema":"{}"}}'
    )
    variables = laptop.cloud.environment()
    exports = "\n".join(f"export {each}={variables[each]}" for each in sorted(variables))
    strict = (
        STRICT_NOTE.format(names=", ".join(laptop.deployment.roles), log=CACHE_FOLDER / "logs")
        if strictness.roles
        else ""
    )
    return f"""\
Nakadi is ready at {front.url}
It keeps all data in memory until it ends. The logs of functions are in {CACHE_FOLDER / "logs"}

  curl {front.url}/health
  curl{token} -H 'Content-Type: application/json' -d '{example}' {front.url}/event-types
  curl{token} {front.url}/event-types

With these variables, the AWS command line finds tables, streams and the archive, and creates queues for sinks:

{exports}
{strict}
Ctrl-C ends it."""
