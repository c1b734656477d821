"""`nakadi event-types`."""

import json

import pytest
import yaml

from tests.support.api import a_definition, create_event_type
from tests.support.builders import a_name

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}}


def test_event_types_are_listed_by_pattern_owner_and_category(run, api):
    """A list has the matching event types, as a table, as JSON or as YAML."""
    name = create_event_type(api, owning_application="the-cli")["name"]
    create_event_type(api, owning_application="another")

    found = run("event-types", "list", name[:8] + "*", "--owner", "the-cli", "--category", "undefined", "-o", "json")

    assert [each["name"] for each in found.json] == [name]
    assert yaml.safe_load(run("event-types", "list", "--owner", "the-cli", "-o", "yaml").out)[0]["name"] == name
    heading, row = run("event-types", "list", "--owner", "the-cli").out.splitlines()
    assert heading.split()[:3] == ["NAME", "CATEGORY", "OWNER"]
    assert row.split()[:3] == [name, "undefined", "the-cli"]
    assert run("event-types", "list", "--owner", "the-cli", "--category", "data", "-o", "json").json == []


def test_an_event_type_is_shown_with_its_schema(run, api):
    """`get` shows the definition, with its schema as an object."""
    name = create_event_type(api, schema=SCHEMA)["name"]

    assert yaml.safe_load(run("event-types", "get", name).out)["schema"]["schema"] == SCHEMA
    assert run("event-types", "get", name, "-o", "json").json["name"] == name
    assert name in run("event-types", "get", name, "-o", "table").out


def test_what_get_shows_can_be_created_again(run, api):
    """`create` accepts the output of `get` with another name."""
    old, new = create_event_type(api, schema=SCHEMA)["name"], a_name()
    text = run("event-types", "get", old).out.replace(old, new)

    assert run("event-types", "create", "-f", "-", stdin=text).code == 0
    assert json.loads(api.get(f"/event-types/{new}").json()["schema"]["schema"]) == SCHEMA


def test_what_get_shows_can_be_edited_and_handed_back(run, api):
    """`update` changes an event type to match a definition, which must have the name of the event type."""
    name = create_event_type(api, schema=SCHEMA)["name"]
    definition = yaml.safe_load(run("event-types", "get", name).out)
    definition["schema"]["schema"]["properties"]["paid"] = {"type": "boolean"}

    done = run("event-types", "update", "-f", "-", stdin=yaml.safe_dump(definition))

    assert done.code == 0, done.err
    assert json.loads(api.get(f"/event-types/{name}").json()["schema"]["schema"]) == definition["schema"]["schema"]
    assert run("event-types", "update", "-f", "-", stdin="{}").code == 2
    assert run("event-types", "update", "-f", "-", stdin=json.dumps({**definition, "name": a_name()})).code == 5


def test_an_event_type_is_created_from_json(run, api, tmp_path):
    """`create` accepts the same body as the API."""
    definition = a_definition()
    (tmp_path / "it.json").write_text(json.dumps(definition))

    assert run("event-types", "create", "-f", str(tmp_path / "it.json")).code == 0
    assert api.get(f"/event-types/{definition['name']}").status_code == 200


def test_a_refusal_is_a_sentence_with_the_detail_and_the_flow_id(run, api):
    """If the broker refuses a request, the exit code is 3, and the command prints one line: the detail, the violations,
    the status and the flow id.
    """
    name = create_event_type(api)["name"]

    twice = run("event-types", "create", "-f", "-", stdin=json.dumps(a_definition(name=name)))
    invalid = run("event-types", "create", "-f", "-", stdin="{name: no}")

    assert twice.code == invalid.code == 3
    assert name in twice.err
    assert "(409, flow id " in twice.err
    assert "owning_application" in invalid.err
    assert len(twice.err.splitlines()) == 1


def test_an_event_type_is_deleted_when_its_name_is_typed(run, api):
    """`delete` asks the user to type the name, unless there is `--yes`."""
    one, two = create_event_type(api)["name"], create_event_type(api)["name"]

    assert run("event-types", "delete", one, stdin="yes\n").code == 2
    assert api.get(f"/event-types/{one}").status_code == 200
    assert run("event-types", "delete", one, stdin=f"{one}\n").code == 0
    assert run("event-types", "delete", two, "--yes").code == 0
    assert [api.get(f"/event-types/{each}").status_code for each in (one, two)] == [404, 404]


def test_where_nothing_can_be_typed_nothing_is_deleted(run, api):
    """Without a terminal and without `--yes`, nothing is deleted, and the message names the missing option."""
    name = create_event_type(api)["name"]
    done = run("event-types", "delete", name)

    assert done.code == 2
    assert "--yes" in done.err
    assert api.get(f"/event-types/{name}").status_code == 200


def test_partitions_are_listed(run, api):
    """`partitions` shows where each partition begins and ends."""
    name = create_event_type(api)["name"]

    assert run("event-types", "partitions", name, "-o", "json").json[0]["partition"] == "0"
    assert run("event-types", "partitions", name).out.split()[:3] == ["PARTITION", "OLDEST", "NEWEST"]


@pytest.mark.parametrize("text", ["{", "[", "\t- : :", "", pytest.param("[" * 100_000, id="deep nesting")])
def test_a_file_that_is_no_definition_is_exit_code_2(run, text):
    """A file that is neither JSON nor YAML, or has no object, is refused before the first request to the broker."""
    assert run("event-types", "create", "-f", "-", stdin=text, url="http://127.0.0.1:9").code == 2


def test_a_missing_file_is_named(run):
    """If a file cannot be read, the exit code is 2, and the message names the file."""
    done = run("event-types", "create", "-f", "no/such.json")

    assert done.code == 2
    assert "no/such.json" in done.err


def test_what_a_terminal_would_obey_is_not_printed(run, api):
    """No output format passes on control characters from texts that others have written."""
    owner = "shop\x1b[2J\x9b2J"
    create_event_type(api, owning_application=owner)

    for how in ("table", "json", "yaml"):
        shown = run("event-types", "list", "--owner", owner, "-o", how).out
        assert "shop" in shown
        assert not {"\x1b", "\x9b"} & set(shown)
    assert run("event-types", "list", "--owner", owner, "-o", "json").json[0]["owning_application"] == owner


def test_an_answer_of_something_else_is_no_broker(run):
    """If something other than a broker answers at the URL, the exit code is 6."""
    assert run("event-types", "list", url="http://127.0.0.1:9").code == 6


def test_readers_are_shown_and_forced(run, api):
    """`readers` shows the readers of members, and `update --force` names the readers that may miss a member.
    (D7, D13)
    """
    name = create_event_type(api, schema={"properties": {"order": {"type": "integer"}, "note": {}}})["name"]
    identity = run(
        "subscriptions", "create", name, "--owner", "the-cli", "--reads", "order", "--projection"
    ).out.strip()
    assert api.get(f"/subscriptions/{identity}").json()["projection"]

    table = run("event-types", "readers", name)
    assert [identity, "the-cli", "default", "order"] == table.out.splitlines()[1].split()
    assert "No subscription declares that it reads note." in table.err
    assert run("event-types", "readers", name, "-o", "json").json["unread"] == ["note"]

    definition = yaml.safe_load(run("event-types", "get", name).out)
    definition["schema"]["schema"]["properties"]["order"] = {"type": "number"}
    text = yaml.safe_dump(definition)
    refused = run("event-types", "update", "-f", "-", stdin=text)
    assert refused.code == 3
    assert identity in refused.err
    assert run("event-types", "update", "-f", "-", "--force", identity, stdin=text).code == 0
