"""`nakadi sinks`."""

from __future__ import annotations

from typing import Any

import click

from nakadi_cli.api import path
from nakadi_cli.commands import Group, ask_for, chosen_format, connect, print_note, print_result, subcommand
from nakadi_cli.failures import BadInput, CheckFoundProblems
from nakadi_cli.files import read_definition
from nakadi_cli.output import harmless

_SUBSCRIPTION = "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11"

# The broker's names for the type and the target of a sink, by the service in an ARN.
_TARGETS_BY_SERVICE = {
    "lambda": ("lambda", "function"),
    "sqs": ("sqs", "queue"),
    "sns": ("sns", "topic"),
    "events": ("eventbridge", "bus"),
}


@click.group(cls=Group)
def sinks() -> None:
    """Show and change sinks: receivers to which the broker itself delivers events."""


@subcommand(sinks, "show", f"nakadi sinks show {_SUBSCRIPTION}", f"nakadi sinks show {_SUBSCRIPTION} -o json")
@click.argument("subscription")
def show_sink(subscription: str) -> None:
    """Show the sink of a subscription, its state and its deliveries, beginning with the last failure."""
    print_result(_failure_first(connect().get(_sink(subscription))))


@subcommand(
    sinks,
    "set",
    f"nakadi sinks set {_SUBSCRIPTION} --to https://shipping.example.org/hook",
    f"nakadi sinks set {_SUBSCRIPTION} --to https://shipping.example.org/hook --header 'Authorization: Bearer x'",
    f"nakadi sinks set {_SUBSCRIPTION} --to https://shipping.example.org/hook --filter 'total > 100'",
    f"nakadi sinks set {_SUBSCRIPTION} --to arn:aws:sqs:eu-central-1:123456789012:orders.fifo",
    f"nakadi sinks set {_SUBSCRIPTION} -f sink.yaml",
)
@click.argument("subscription")
@click.option("--to", "receiver", help="A URL, or the ARN of a function, queue, topic or bus.")
@click.option("--format", "body_format", type=click.Choice(["nakadi", "cloudevents"]), help="The body of a delivery.")
@click.option("--filter", help="Deliver only events that meet this condition, as in nakadi tail --where.")
@click.option("--batch-limit", type=click.IntRange(1), help="The maximum number of events in a delivery.")
@click.option("--timeout-seconds", type=click.IntRange(1), help="How long the receiver may take to answer.")
@click.option("--max-in-flight", type=click.IntRange(1), help="The maximum number of simultaneous deliveries.")
@click.option("--parallel", type=click.Choice(["partition", "key"]), help="How simultaneous deliveries must differ.")
@click.option("--header", "headers", multiple=True, help="A header of each delivery, as 'Name: value'; repeatable.")
@click.option("-f", "--file", "file", help="A file in YAML or JSON with the whole sink; - is standard input.")
def set_sink(subscription: str, receiver: str | None, headers: tuple[str, ...], file: str | None, **rest: Any) -> None:
    """Add a sink to a subscription, or replace the one that it has.

    A new sink gets a generated secret, which the command shows only once; an existing sink keeps its own. Options that
    you omit get their defaults. Pass secret headers in a file, because other users of the machine may see command
    lines.
    """
    named = {name.replace("body_", ""): value for name, value in rest.items() if value is not None}
    if (receiver is None) is (file is None) or (file and (named or headers)):
        raise BadInput("Name the receiver with --to, or pass a whole sink with --file.")
    sink: Any = {**_target(receiver or ""), **named}
    if headers:
        sink["headers"] = dict(_header(each) for each in headers)
    print_result(connect().put(_sink(subscription), read_definition(file, "a sink") if file else sink))


@subcommand(sinks, "test", f"nakadi sinks test {_SUBSCRIPTION}")
@click.argument("subscription")
def test_sink(subscription: str) -> None:
    """Send a signed delivery without events, and show the answer.

    The exit code is 1 if the receiver does not answer with 2xx.
    """
    answer = connect().post(_sink(subscription, "test"))
    print_result(answer)
    if not 200 <= (answer.get("status") or 0) < 300:
        raise CheckFoundProblems("The receiver did not take the delivery.")


@subcommand(sinks, "pause", f"nakadi sinks pause {_SUBSCRIPTION}", shows=False)
@click.argument("subscription")
def pause(subscription: str) -> None:
    """Stop the deliveries; the events wait."""
    connect().post(_sink(subscription, "pause"))
    print_note("Paused.")


@subcommand(sinks, "resume", f"nakadi sinks resume {_SUBSCRIPTION}", shows=False)
@click.argument("subscription")
def resume(subscription: str) -> None:
    """Resume the deliveries, and deliver waiting events at once."""
    connect().post(_sink(subscription, "resume"))
    print_note("Resumed.")


@subcommand(sinks, "rotate-secret", f"nakadi sinks rotate-secret {_SUBSCRIPTION}")
@click.argument("subscription")
def rotate_secret(subscription: str) -> None:
    """Generate a new secret, and print it. For 24 hours, deliveries carry signatures with both."""
    found = connect().post(_sink(subscription, "secret", "rotate"))
    if chosen_format("table") == "table":
        click.echo(harmless(found["secret"]))
    else:
        print_result(found)


@subcommand(sinks, "remove", f"nakadi sinks remove {_SUBSCRIPTION} --yes", shows=False)
@click.argument("subscription")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(subscription: str, *, yes: bool) -> None:
    """Remove a sink and its secret; the subscription and its cursors stay."""
    api = connect()
    ask_for(subscription, "Type the id of the subscription to remove its sink", skip=yes)
    api.delete(_sink(subscription))
    print_note("Removed.")


def _failure_first(sink: dict[str, Any]) -> dict[str, Any]:
    """The same sink; if a delivery failed, it begins with the last failure."""
    deliveries = sink.get("deliveries", {})
    if "last_failure" not in deliveries:
        return sink
    others = {name: value for name, value in sink.items() if name != "deliveries"}
    return {"deliveries": {"last_failure": deliveries["last_failure"], **deliveries}, **others}


def _sink(subscription: str, *rest: str) -> str:
    return path("subscriptions", subscription, "sink", *rest)


def _target(receiver: str) -> dict[str, str]:
    """The type of a sink and its target. An ARN names its service."""
    scheme, *rest = receiver.split(":", 3)
    if scheme != "arn":
        return {"type": "http", "url": receiver}
    service = rest[1] if len(rest) > 1 else ""
    if service not in _TARGETS_BY_SERVICE:
        raise BadInput("The ARN must be one of a Lambda function, an SQS queue, an SNS topic or an event bus.")
    sink_type, member = _TARGETS_BY_SERVICE[service]
    return {"type": sink_type, member: receiver}


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise BadInput("A header is written as 'Name: value'.")
    return name.strip(), value.strip()
