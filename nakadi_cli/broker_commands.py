"""`nakadi timelines`, `storages`, `features` and `admin`: commands about the broker itself."""

from __future__ import annotations

import click

from nakadi_cli.api import path
from nakadi_cli.commands import Group, connect, print_note, print_result, subcommand
from nakadi_cli.failures import BadInput
from nakadi_cli.files import read_definition, read_document

_ROLES = ("admins", "readers", "writers")
_BLOCKS = ("CONSUMER_APP", "CONSUMER_ET", "PRODUCER_APP", "PRODUCER_ET")


@click.group(cls=Group)
def timelines() -> None:
    """List the timelines of an event type, and create new ones."""


@subcommand(timelines, "list", "nakadi timelines list order.placed")
@click.argument("event_type")
def list_timelines(event_type: str) -> None:
    """List the timelines of an event type, the oldest first. New events go to the last one."""
    print_result(
        connect().get(path("event-types", event_type, "timelines")),
        {
            "ORDER": lambda each: each["order"],
            "STORAGE": lambda each: each["storage_id"],
            "TOPIC": lambda each: each["topic"],
            "SWITCHED": lambda each: each["switched_at"],
            "CLEANED UP": lambda each: each["cleaned_up_at"],
        },
    )


@subcommand(timelines, "create", "nakadi timelines create order.placed --storage default", shows=False)
@click.argument("event_type")
@click.option("--storage", default="default", show_default=True, help="The storage for the new timeline.")
def create_timeline(event_type: str, storage: str) -> None:
    """Create a new timeline. Streams continue from one to the next."""
    connect().post(path("event-types", event_type, "timelines"), {"storage_id": storage})
    print_note(f"New events of {event_type} go to a new timeline in {storage}.")


@subcommand(timelines, "adopt", "nakadi timelines adopt order.placed --storage home -f timelines.json", shows=False)
@click.argument("event_type")
@click.option("--storage", required=True, help="The storage whose Kafka has the topics.")
@click.option("-f", "--file", "file", required=True, help="The timelines of the other broker; - reads standard input.")
def adopt_timelines(event_type: str, storage: str, file: str) -> None:
    """Take over topics of another broker. The event type must have no events and no subscriptions."""
    adopted = read_document(file)
    if not isinstance(adopted, list):
        raise BadInput(f"{file} is not a list of timelines, as `nakadi timelines list -o json` prints it.")
    connect().post(path("event-types", event_type, "timelines"), {"storage_id": storage, "adopt": adopted})
    print_note(f"{event_type} now has the topics of {len(adopted)} timelines in {storage}.")


@click.group(cls=Group)
def storages() -> None:
    """List, show, create, choose and delete storages."""


@subcommand(storages, "list", "nakadi storages list")
def list_storages() -> None:
    """List the storages for events."""
    print_result(
        connect().get("/storages"),
        {
            "ID": lambda each: each["id"],
            "TYPE": lambda each: each["storage_type"],
            "DEFAULT": lambda each: "*" if each["default"] else "",
        },
    )


@subcommand(storages, "get", "nakadi storages get default")
@click.argument("storage")
def get_storage(storage: str) -> None:
    """Show a storage."""
    print_result(connect().get(path("storages", storage)))


@subcommand(storages, "create", "nakadi storages create -f storage.yaml", shows=False)
@click.option("-f", "--file", "file", required=True, help="The definition in JSON or YAML; - reads standard input.")
def create_storage(file: str) -> None:
    """Create a storage."""
    definition = read_definition(file, "a storage")
    connect().post("/storages", definition)
    print_note(f"Created storage {definition.get('id')}.")


@subcommand(storages, "use", "nakadi storages use orders", shows=False)
@click.argument("storage")
def use_storage(storage: str) -> None:
    """Choose the storage for new event types."""
    connect().put(path("storages", "default", storage))
    print_note(f"New event types go to {storage}.")


@subcommand(storages, "delete", "nakadi storages delete orders", shows=False)
@click.argument("storage")
def delete_storage(storage: str) -> None:
    """Delete a storage that no timeline uses."""
    connect().delete(path("storages", storage))
    print_note(f"Deleted storage {storage}.")


@click.group(cls=Group)
def features() -> None:
    """List features, and switch them on or off."""


@subcommand(features, "list", "nakadi features list")
def list_features() -> None:
    """List the features, on or off."""
    print_result(
        connect().get("/settings/features")["items"],
        {"FEATURE": lambda each: each["feature"], "STATE": lambda each: "on" if each["enabled"] else "off"},
    )


@subcommand(features, "on", "nakadi features on disable_event_type_creation", shows=False)
@click.argument("feature")
def switch_on(feature: str) -> None:
    """Switch a feature on."""
    _switch(feature, on=True)


@subcommand(features, "off", "nakadi features off disable_event_type_creation", shows=False)
@click.argument("feature")
def switch_off(feature: str) -> None:
    """Switch a feature off."""
    _switch(feature, on=False)


@click.group(cls=Group)
def admin() -> None:
    """Show and change the administrators, and the applications and event types that are blocked."""


@subcommand(admin, "list", "nakadi admin list")
def list_admins() -> None:
    """List the administrators of the broker."""
    found = connect().get("/settings/admins")
    rows = [{"role": role, **attribute} for role in _ROLES for attribute in found[role]]
    print_result(
        rows,
        {
            "ROLE": lambda row: row["role"],
            "KIND": lambda row: row["data_type"],
            "NAME": lambda row: row["value"],
        },
    )


@subcommand(admin, "add", "nakadi admin add writers service:shop", shows=False)
@click.argument("role", type=click.Choice(_ROLES))
@click.argument("who")
def add_admin(role: str, who: str) -> None:
    """Give a role to a user, a service or a team, such as service:shop."""
    _change_admins(role, who, add=True)


@subcommand(admin, "remove", "nakadi admin remove writers service:shop", shows=False)
@click.argument("role", type=click.Choice(_ROLES))
@click.argument("who")
def remove_admin(role: str, who: str) -> None:
    """Take a role from a user, a service or a team."""
    _change_admins(role, who, add=False)


@subcommand(admin, "blocked", "nakadi admin blocked")
def list_blocked() -> None:
    """List the applications and event types that are blocked from consuming or producing."""
    found = connect().get("/settings/blacklist")
    rows = [
        {"kind": f"{side.upper()}_{kind}", "name": name}
        for side, names in (("consumer", found["consumers"]), ("producer", found["producers"]))
        for kind, key in (("APP", "apps"), ("ET", "event_types"))
        for name in names[key]
    ]
    print_result(rows, {"KIND": lambda row: row["kind"], "NAME": lambda row: row["name"]})


@subcommand(admin, "block", "nakadi admin block PRODUCER_APP checkout", shows=False)
@click.argument("kind", type=click.Choice(_BLOCKS))
@click.argument("name")
def block(kind: str, name: str) -> None:
    """Block an application or an event type from consuming or producing."""
    connect().put(path("settings", "blacklist", kind, name))
    print_note(f"Blocked {kind} {name}.")


@subcommand(admin, "unblock", "nakadi admin unblock PRODUCER_APP checkout", shows=False)
@click.argument("kind", type=click.Choice(_BLOCKS))
@click.argument("name")
def unblock(kind: str, name: str) -> None:
    """Lift a block."""
    connect().delete(path("settings", "blacklist", kind, name))
    print_note(f"Unblocked {kind} {name}.")


def _switch(feature: str, *, on: bool) -> None:
    connect().post("/settings/features", {"feature": feature, "enabled": on})
    print_note(f"{feature} is {'on' if on else 'off'}.")


def _change_admins(role: str, who: str, *, add: bool) -> None:
    kind, colon, name = who.partition(":")
    if not (kind and colon and name):
        raise BadInput(f"{who!r} is not a subject: write kind and name with a colon, such as service:shop.")
    api = connect()
    lists = api.get("/settings/admins")
    attribute = {"data_type": kind, "value": name}
    if not add and attribute not in lists[role]:
        raise BadInput(f"{who} is not among the {role}.")
    rest = [each for each in lists[role] if each != attribute]
    api.post("/settings/admins", {**lists, role: [*rest, attribute] if add else rest})
    print_note(f"{who} is {'' if add else 'not '}among the {role}.")
