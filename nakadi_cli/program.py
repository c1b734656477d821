"""All commands by name."""

from __future__ import annotations

import click

from nakadi_cli import __version__
from nakadi_cli.commands import LazyGroup

_COMMANDS = {
    "event-types": (
        "nakadi_cli.event_types:event_types",
        "List, look at, create, change and delete event types.",
    ),
    "schema": ("nakadi_cli.schema_commands:schema", "Look at the versions of a schema, and check another one."),
    "publish": ("nakadi_cli.event_commands:publish", "Publish events from a file or from standard input."),
    "tail": ("nakadi_cli.event_commands:tail", "Show the events of an event type as they come."),
    "subscriptions": (
        "nakadi_cli.subscription_commands:subscriptions",
        "List, look at, create, change, delete and reset subscriptions; see how far behind they are.",
    ),
    "consume": ("nakadi_cli.consuming:consume", "Consume the events of a subscription, and commit what was taken."),
    "apply": ("nakadi_cli.apply_commands:apply", "Create and change event types and subscriptions as files say."),
    "diff": ("nakadi_cli.apply_commands:diff", "Show how event types and subscriptions differ from what files say."),
    "parked": (
        "nakadi_cli.parked_commands:parked",
        "Look at events that no consumer could process; skip them, or send them again.",
    ),
    "timelines": (
        "nakadi_cli.broker_commands:timelines",
        "Look at the timelines of an event type, and begin new ones.",
    ),
    "storages": ("nakadi_cli.broker_commands:storages", "List, look at, create, choose and delete storages."),
    "features": ("nakadi_cli.broker_commands:features", "List features, and switch them on and off."),
    "admin": ("nakadi_cli.broker_commands:admin", "See and change who administrates the broker, and what is blocked."),
    "doctor": ("nakadi_cli.doctor:doctor", "Look whether a broker is well, with reasons."),
    "serve": ("nakadi_cli.local_commands:serve", "Start a broker on this machine."),
    "jobs": ("nakadi_cli.local_commands:jobs", "Run a job on what a broker has archived on this machine."),
    "completion": ("nakadi_cli.local_commands:completion", "Print what makes a shell complete commands."),
    "contexts": ("nakadi_cli.context_commands:contexts", "Keep brokers by name, with their tokens."),
}


@click.group(
    cls=LazyGroup,
    commands_at=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="nakadi", message="%(prog)s %(version)s")
def nakadi() -> None:
    """Look at an event broker with the Nakadi API, and steer it.

    The broker is that of the current context (nakadi contexts --help), unless NAKADI_URL or --url names another one;
    without any of them it is http://127.0.0.1:8080. NAKADI_TOKEN goes before the token of a context. -o, --context
    and --url may stand before a command and after it.
    """
