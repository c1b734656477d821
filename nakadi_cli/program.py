"""The program: all commands by name."""

from __future__ import annotations

import click

from nakadi_cli import __version__
from nakadi_cli.commands import LazyGroup

_COMMANDS = {
    "event-types": (
        "nakadi_cli.event_types:event_types",
        "List, show, create, change and delete event types.",
    ),
    "schema": (
        "nakadi_cli.schema_commands:schema",
        "List versions of a schema, check a new one, propose one, and generate example events.",
    ),
    "types": ("nakadi_cli.type_commands:types", "Write the types of events as source text for a language."),
    "publish": ("nakadi_cli.event_commands:publish", "Publish events from a file or from standard input."),
    "tail": ("nakadi_cli.event_commands:tail", "Show the events of an event type as they arrive."),
    "subscriptions": (
        "nakadi_cli.subscription_commands:subscriptions",
        "List, show, create, change, delete and reset subscriptions; see their lag.",
    ),
    "sql": ("nakadi_cli.sql_commands:sql", "Query events with SQL, in the jobs' tables and in the log."),
    "tables": (
        "nakadi_cli.table_commands:tables",
        "Show the quality of the jobs' tables, and describe them for dbt.",
    ),
    "consume": ("nakadi_cli.consuming:consume", "Consume the events of a subscription, and commit them."),
    "relay": (
        "nakadi_cli.relay_commands:relay",
        "Publish events that an application wrote into its own PostgreSQL database.",
    ),
    "apply": ("nakadi_cli.apply_commands:apply", "Create and change event types and subscriptions from files."),
    "diff": ("nakadi_cli.apply_commands:diff", "Show how event types and subscriptions differ from files."),
    "parked": (
        "nakadi_cli.parked_commands:parked",
        "List events that no consumer could process; skip or redrive them.",
    ),
    "sinks": (
        "nakadi_cli.sink_commands:sinks",
        "Show and change sinks, to which the broker delivers events.",
    ),
    "timelines": (
        "nakadi_cli.broker_commands:timelines",
        "List the timelines of an event type, and create new ones.",
    ),
    "storages": ("nakadi_cli.broker_commands:storages", "List, show, create, choose and delete storages."),
    "features": ("nakadi_cli.broker_commands:features", "List features, and switch them on or off."),
    "admin": ("nakadi_cli.broker_commands:admin", "Show and change administrators, and what is blocked."),
    "doctor": ("nakadi_cli.doctor:doctor", "Check the health of a broker, and give reasons."),
    "support-bundle": (
        "nakadi_cli.support_bundle:support_bundle",
        "Collect information that helps to find a fault in one file, without secrets.",
    ),
    "serve": ("nakadi_cli.local_commands:serve", "Start a broker on this machine."),
    "jobs": ("nakadi_cli.local_commands:jobs", "Run a job on the archive of a broker on this machine."),
    "mirror": (
        "nakadi_cli.mirror_commands:mirror",
        "Copy event types, events and subscriptions from one broker to another while both run.",
    ),
    "backup": (
        "nakadi_cli.local_commands:backup",
        "Back up the data folder of a broker on this machine, which may be running.",
    ),
    "restore": ("nakadi_cli.local_commands:restore", "Restore a backup into a new data folder."),
    "completion": ("nakadi_cli.local_commands:completion", "Print a script that completes commands in a shell."),
    "contexts": ("nakadi_cli.context_commands:contexts", "Store brokers by name, with their tokens."),
}


@click.group(
    cls=LazyGroup,
    commands_at=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="nakadi", message="%(prog)s %(version)s")
def nakadi() -> None:
    """Inspect and control an event broker with the Nakadi API.

    The current context (nakadi contexts --help) chooses the broker, unless NAKADI_URL or --url names another one.
    Without any of them, it is http://127.0.0.1:8080. NAKADI_TOKEN overrides the token of a context. -o, --context and
    --url may stand before a command or after it.
    """
