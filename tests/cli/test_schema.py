"""`nakadi schema`."""

import json

import jsonpatch
import pytest

from nakadi_cli.line_numbers import find_line
from tests.support.api import a_definition, create_event_type

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}}
CHANGED = """{
\t"type": "object",
\t"title": "An order: 100 %",
\t"properties": {
\t\t"order": {"type": "integer"}
\t}
}
"""


def test_a_schema_is_checked_before_it_is_changed(run, api, tmp_path):
    """`schema check` says by exit code 0 or 1 whether the broker would accept a new schema, given as a schema or a
    definition.
    """
    name = create_event_type(api, schema=SCHEMA, compatibility_mode="compatible")["name"]
    good, bad, whole = (tmp_path / each for each in ("good.yaml", "bad.json", "whole.yaml"))
    good.write_text("{type: object, properties: {order: {type: string}, note: {type: string}}}")
    bad.write_text(json.dumps({"type": "object", "properties": {"order": {"type": "integer"}}}))
    whole.write_text(json.dumps(a_definition(name=name, schema=SCHEMA)))

    assert run("schema", "check", str(good), "--event-type", name).code == 0
    assert run("schema", "check", str(whole)).code == 0
    rejected_schema = run("schema", "check", str(bad), "--event-type", name, "-o", "json")
    assert rejected_schema.code == 1
    assert "order" in rejected_schema.json["error"]
    assert run("schema", "check", str(bad)).code == 2
    assert run("schema", "list", name, "-o", "json").json[0]["schema"] == SCHEMA


@pytest.fixture
def event_type(api):
    return create_event_type(api, schema=SCHEMA)["name"]


@pytest.fixture
def rejected_schema(tmp_path):
    file = tmp_path / "refused.json"
    file.write_text(CHANGED)
    return str(file)


def test_a_report_has_lines_reasons_and_a_proposal(run, event_type, rejected_schema):
    """The report shows the place of each change, its meaning, and an acceptable alternative."""
    done = run("schema", "check", rejected_schema, "--event-type", event_type)

    assert done.code == 1
    first, title, order, proposal, *patch = done.out.splitlines()
    assert first == f"{rejected_schema}: cannot follow version 1.0.0 of {event_type} in mode forward."
    assert title.startswith(f"{rejected_schema}:1: patch: The title of the root")
    assert order.startswith(f"{rejected_schema}:5: refused: The type of the schema at #/properties/order changed.")
    assert proposal.startswith("Proposal")
    accepted = jsonpatch.apply_patch(json.loads(CHANGED), [json.loads(each) for each in patch])
    assert accepted["properties"] == {"order": {"type": "string"}, "order_2": {"type": "integer"}}


def test_a_report_of_an_accepted_schema_says_its_level(run, event_type, tmp_path):
    """For an accepted schema, the exit code is 0, and the report names the level of the change."""
    (tmp_path / "good.json").write_text(json.dumps(SCHEMA | {"title": "t"}))
    done = run("schema", "check", str(tmp_path / "good.json"), "--event-type", event_type)

    assert done.code == 0
    assert "could follow version 1.0.0" in done.out.splitlines()[0]
    assert "as a patch version" in done.out.splitlines()[0]


def test_a_newly_required_property_is_a_warning(run, event_type, tmp_path):
    """The mode `forward` permits a new required property as a minor change, but the broker then rejects publishers
    that do not send it.
    """
    (tmp_path / "new.json").write_text(json.dumps(SCHEMA | {"required": ["order"]}))
    arguments = ("schema", "check", str(tmp_path / "new.json"), "--event-type", event_type)

    done = run(*arguments)

    assert done.code == 0
    assert "as a minor version" in done.out
    assert f"{arguments[2]}:1: warning: More properties became required" in done.out
    assert "Publishers that do not send `order` will be rejected." in done.out
    assert run(*arguments, "--annotations", "github").out.startswith("::warning ")
    assert run(*arguments, "--annotations", "gitlab").json[0]["severity"] == "major"


def test_an_earlier_schema_comes_back(run, event_type, tmp_path):
    """The rollback in the runbook first sets the mode `none`, and then the earlier schema. After that, the broker
    accepts the publishers' events again.
    """
    changed = json.loads(run("event-types", "get", event_type, "-o", "json").out)
    changed["schema"]["schema"] = SCHEMA | {"required": ["order"]}
    file = tmp_path / "definition.json"
    file.write_text(json.dumps(changed))
    assert run("event-types", "update", "-f", str(file)).code == 0
    (tmp_path / "events.json").write_text("[{}]")
    assert run("publish", event_type, str(tmp_path / "events.json")).code != 0

    file.write_text(json.dumps(changed | {"compatibility_mode": "none"}))
    assert run("event-types", "update", "-f", str(file)).code == 0
    file.write_text(run("schema", "get", event_type, "--version", "1.0.0").out)
    assert run("event-types", "update", "-f", str(file)).code == 0

    assert run("schema", "get", event_type).json["schema"]["schema"] == SCHEMA
    assert run("publish", event_type, str(tmp_path / "events.json")).code == 0


def test_annotations_for_github(run, event_type, rejected_schema):
    """Each change becomes a workflow command of GitHub; characters that would end the command are escaped."""
    done = run("schema", "check", rejected_schema, "--event-type", event_type, "--annotations", "github")

    assert done.code == 1
    title, order = done.out.splitlines()
    assert title.startswith(f"::notice file={rejected_schema},line=1,title=TITLE_CHANGED::")
    assert order.startswith(f"::error file={rejected_schema},line=5,title=TYPE_CHANGED::The type of ")


def test_annotations_for_gitlab(run, event_type, rejected_schema):
    """The report for GitLab has an issue for each change, with the same fingerprint in each run."""
    arguments = ("schema", "check", rejected_schema, "--event-type", event_type, "--annotations", "gitlab")
    title, order = issues = run(*arguments).json

    assert (title["severity"], order["severity"]) == ("info", "blocker")
    assert order["location"] == {"path": rejected_schema, "lines": {"begin": 5}}
    assert order["check_name"] == "TYPE_CHANGED"
    assert len({each["fingerprint"] for each in issues}) == 2
    assert run(*arguments).json == issues


def test_annotations_of_an_accepted_schema(run, event_type, tmp_path):
    """For a schema without changes, there are no annotations, and the report says that the schema is the same."""
    (tmp_path / "same.json").write_text(json.dumps(SCHEMA))
    arguments = ("schema", "check", str(tmp_path / "same.json"), "--event-type", event_type, "--annotations")

    assert run(*arguments, "github").out == ""
    assert run(*arguments, "gitlab").json == []
    assert run(*arguments[:-1]).out == f"{arguments[2]}: is the schema of version 1.0.0 of {event_type}.\n"


def test_the_lines_are_those_of_a_definition(run, event_type, tmp_path):
    """If the schema is in the definition of an event type, the lines are those of the definition."""
    definition = a_definition(name=event_type)
    definition["schema"]["schema"] = json.loads(CHANGED)
    (tmp_path / "definition.json").write_text(json.dumps(definition, indent=2))

    order = run("schema", "check", str(tmp_path / "definition.json"), "--annotations", "gitlab").json[1]

    line = order["location"]["lines"]["begin"]
    assert '"order": {' in (tmp_path / "definition.json").read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    ("text", "steps", "line"),
    [
        ('{\n"a": [1,\n{"b": 2}]}', ["a", "1", "b"], 3),
        ("a:\n- 1\n- b: 2\n  c: 3\n", ["a", "1", "c"], 4),
        ('{"a":\n1,\n"b/c":\n2}', ["b", "c"], 3),
        ('{"a":\n1,\n"b":\n2}', ["b", "missing"], 3),
        ('{"a":\n1,\n"b":\n2}', [], 1),
        ('{\t"a":\n\t1,\n\t"b":\n\t2}', ["b"], 3),
        ("{", ["a"], 1),
        ("", ["a"], 1),
        ("[" * 5000, ["0"], 1),
    ],
)
def test_lines_are_found(text, steps, line):
    """The line of a change is the line of the innermost value on its path, in JSON and in YAML."""
    assert find_line(text, steps) == line


def test_a_schema_that_takes_away_what_is_read_names_the_readers(run, api, tmp_path):
    """The check refuses a schema that removes what readers have declared, as the broker would, and names the
    readers. (D9)
    """
    name = create_event_type(api, schema={"properties": {"order": {"type": "integer"}}})["name"]
    identity = run("subscriptions", "create", name, "--owner", "the-cli", "--reads", "order").out.strip()
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"properties": {"order": {"type": "number"}}}))
    found = run("schema", "check", str(file), "--event-type", name)
    assert found.code == 1
    assert (
        f"refused: `order` may now be a fraction, but was always an integer. Subscription {identity} of the-cli"
        in found.out
    )
