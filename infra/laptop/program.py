"""`make run ENGINE=aws-local`: the deployment, served on a port of this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

from infra.laptop.cloud import LENIENT, STRICT, NotDeployed, Strictness
from infra.laptop.laptop import Front, Laptop
from infra.laptop.roles import OWNER
from infra.laptop.synthesis import KEPT, NotSynthesized
from infra.laptop.templates import REGION
from nakadi.app.settings import read_settings
from nakadi.app.shutdown import SignalHandler
from nakadi.model.outcomes import BadSetting

CANNOT_START = 1

STRICTLY = """
Roles may do what the templates allow them, and shards, functions and the gateway take what they take on AWS.
What is denied is in {log}/aws.log and {log}/kinesis.log. Who has the name of a role as AWS_ACCESS_KEY_ID acts as it:

  {names}
"""


def main(arguments: Sequence[str] | None = None, *, signals: SignalHandler) -> int:
    options = _options(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    print("Synthesizing and deploying. The first time takes half a minute.", flush=True)  # noqa: T201  # a program
    try:
        _run(options.port, STRICT if options.strict else LENIENT, os.environ, signals)
    except (BadSetting, NotDeployed, NotSynthesized, OSError) as reason:
        print(f"The deployment cannot start. {reason}", file=sys.stderr)  # noqa: T201  # as above
        return CANNOT_START
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m infra.laptop",
        description="What is deployed on AWS, on this machine.",
        epilog="NAKADI_* environment variables take the place of what the templates say.",
    )
    parser.add_argument("--port", type=int, default=8080, help="default 8080; 0 takes a free one")
    parser.add_argument(
        "--strict", action="store_true", help="roles may do what they are allowed, and the limits of AWS hold"
    )
    return parser.parse_args(arguments)


def _run(port: int, strictness: Strictness, environ: Mapping[str, str], signals: SignalHandler) -> None:
    settings = {name: value for name, value in environ.items() if name.startswith("NAKADI_")}
    read_settings(settings)
    # Tokens are asked for when there is somebody whose tokens are good.
    authorizes = settings.pop("NAKADI_AUTH", "off") != "off"
    with Laptop(KEPT / "logs", settings, strictness) as laptop:
        front = laptop.front(authorizes=authorizes, port=port)
        front.warm_up()
        # A queue, since a handler of signals may put something into it whatever it interrupts.
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
    places = "\n".join(f"export AWS_ENDPOINT_URL_{name.upper()}={at}" for name, at in laptop.cloud.endpoints.items())
    strict = STRICTLY.format(names=", ".join(laptop.deployment.roles), log=KEPT / "logs") if strictness.roles else ""
    return f"""\
Nakadi is ready at {front.url}
Everything is kept in memory, until it ends. What functions log is in {KEPT / "logs"}

  curl {front.url}/health
  curl{token} -H 'Content-Type: application/json' -d '{example}' {front.url}/event-types
  curl{token} {front.url}/event-types

The AWS command line finds tables, streams and archive with

{places}
export AWS_ACCESS_KEY_ID={OWNER} AWS_SECRET_ACCESS_KEY={OWNER} AWS_DEFAULT_REGION={REGION}
{strict}
Ctrl-C ends it."""
