"""`nakadi apply` and `nakadi diff`, with files in the format of clin."""

import json
import subprocess
import sys

import pytest

from nakadi.local import Broker
from nakadi_cli.failures import BadInput
from nakadi_cli.manifests import Chosen, read_manifests
from tests.support.builders import a_name
from tests.support.environment import plain_environment

CLIN_FILE = """
common: &COMMON
  TEAM: shop
  ADMINS: @@@./people/admins.yaml
process:
  - id: Live
    target: live
    paths: [./definitions]
    env:
      <<: *COMMON
      POSTFIX: ""
      ANY_READ: false
  - id: Review
    target: staging
    paths:
      - ./definitions
    env:
      <<: *COMMON
      POSTFIX: "_review"
      ANY_READ: true
"""
EVENT_TYPE = """
kind: event-type
spec:
  name: {{TEAM}}.order{{POSTFIX}}
  category: business
  owningApplication: shop_orders
  audience: company-internal
  partitioning:
    strategy: hash
    keys:
      - order
    partitionCount: 2
  cleanup:
    policy: delete
    retentionTimeDays: 2
  annotations:
    "shop.example/reviewed": "2026-11-22"
  schema:
    compatibility: compatible
    jsonSchema: @@@./../schemas/order.yaml
  auth:
    users:
      admins: {{ADMINS}}
      readers:
      writers:
    teams:
      admins:
        - {{TEAM}}
    services:
      readers:
        - shop_billing
      writers:
    anyToken:
      read: {{ANY_READ}}
      write: true # everybody places orders
"""
COMPACTED = """
kind: event-type
spec:
  name: {{TEAM}}.customer{{POSTFIX}}
  category: business
  owningApplication: shop_customers
  audience: component-internal
  partitioning: {strategy: random, partitionCount: 1}
  cleanup: {policy: compact}
  schema:
    compatibility: none
    jsonSchema:
      type: object
      properties:
        since: {const: "2020-01-01"}
  auth:
    users: {admins: {{ADMINS}}, readers: [ann], writers: [ann, {{ADMINS}}]}
    anyToken: {read: {{ANY_READ}}, write: false}
"""
SUBSCRIPTION = """
kind: subscription
spec:
  owningApplication: shop_billing
  eventTypes:
    - {{TEAM}}.order{{POSTFIX}}
  consumerGroup: main
  auth:
    users:
      admins: {{ADMINS}}
    services:
      readers: [shop_billing]
    anyToken:
      read: {{ANY_READ}}
"""
SCHEMA = """
description: |
  Made when somebody orders, e.g. {order: "4711"}
type: object
properties:
  order: {type: string}
  note: {type: string}
required: [order]
"""
QUERY = "kind: sql-query\nspec: {name: '{{TEAM}}.query', sql: SELECT 1}\n"


@pytest.fixture
def clin_folder(tmp_path):
    """A folder with a clin file, its manifests, and the files that they include."""
    files = {
        "shop.clin.yaml": CLIN_FILE,
        "people/admins.yaml": "- ann\n- bob\n",
        "schemas/order.yaml": SCHEMA,
        "definitions/order.yaml": EVENT_TYPE,
        "definitions/customer.yml": COMPACTED,
        "definitions/a-subscription.yaml": SUBSCRIPTION,
    }
    for name, text in files.items():
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_text(text)
    return tmp_path / "files"


@pytest.fixture
def empty_broker():
    """A broker without event types."""
    with Broker() as broker:
        yield broker


def actions_in(done):
    return [(step["kind"], step["action"]) for step in done.json]


def run_clin(clin_folder, url, target):
    """Apply the files to a broker with clin itself."""
    (clin_folder / ".clin").write_text(f"environments: {{{target}: {{nakadi_url: '{url}'}}}}")
    script = "from clin.run import cli; cli()"
    done = subprocess.run(
        [sys.executable, "-c", script, "process", "-X", "-e", target, "shop.clin.yaml"],
        cwd=clin_folder,
        capture_output=True,
        text=True,
        check=False,
        env=plain_environment(PYTHONWARNINGS="ignore"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def broker_content(run, url):
    """The content of a broker, without members that differ between brokers."""
    own = {"created_at", "updated_at", "id", "version"}

    def drop_server_fields(value):
        if isinstance(value, dict):
            return {key: drop_server_fields(each) for key, each in value.items() if key not in own}
        if isinstance(value, list):
            return sorted((drop_server_fields(each) for each in value), key=json.dumps)
        return value

    event_types = [
        json.loads(run("event-types", "get", each["name"], "-o", "json", url=url).out)
        for each in run("event-types", "list", "shop.*", "-o", "json", url=url).json
    ]
    return drop_server_fields(event_types), drop_server_fields(run("subscriptions", "list", "-o", "json", url=url).json)


def test_files_are_applied_twice_the_second_time_without_a_change(run, empty_broker, clin_folder):
    """Missing resources are created, event types before subscriptions; resources that match the files are left
    alone."""
    arguments = ("-f", str(clin_folder), "--env", "staging", "-o", "json")

    before = run("diff", *arguments, url=empty_broker.url)
    first = run("apply", *arguments, url=empty_broker.url)
    second = run("apply", *arguments, url=empty_broker.url)
    after = run("diff", *arguments, url=empty_broker.url)

    kinds = ["event-type", "event-type", "subscription"]
    assert before.code == 1
    assert actions_in(first) == [(kind, "create") for kind in kinds], first.err
    assert first.code == 0
    assert actions_in(second) == [(kind, "keep") for kind in kinds]
    assert after.code == 0


def test_events_can_be_published_once(run, empty_broker, clin_folder):
    """A manifest may set a deduplication window; a manifest without one leaves the event type's window unchanged."""
    arguments = ("-f", str(clin_folder), "--env", "staging", "-o", "json")
    order = clin_folder / "definitions/order.yaml"
    order.write_text(EVENT_TYPE.replace("category: business", "category: business\n  deduplicationSeconds: 300"))
    assert run("apply", *arguments, url=empty_broker.url).code == 0
    assert run("diff", *arguments, url=empty_broker.url).code == 0
    order.write_text(EVENT_TYPE.replace("retentionTimeDays: 2", "retentionTimeDays: 3"))
    assert ("event-type", "change") in actions_in(run("apply", *arguments, url=empty_broker.url))
    [shown] = [each for each in broker_content(run, empty_broker.url)[0] if each["name"].startswith("shop.order")]
    assert shown["deduplication"] == {"window_seconds": 300}
    assert shown["options"]["retention_time"] == 3 * 24 * 3600 * 1000


def test_the_result_is_the_same_as_with_clin(run, empty_broker, clin_folder):
    """`nakadi apply` changes nothing in a broker that clin has set up, and vice versa."""
    arguments = ("-f", str(clin_folder / "shop.clin.yaml"), "--env", "live", "-o", "json")
    run_clin(clin_folder, empty_broker.url, "live")
    after_clin = run("diff", *arguments, url=empty_broker.url)
    with Broker() as other:
        assert run("apply", *arguments, url=other.url).code == 0
        clin_again = run_clin(clin_folder, other.url, "live")
        ours = broker_content(run, other.url)

    assert after_clin.code == 0, after_clin.out
    assert clin_again.count("Up to date") == 3, clin_again
    assert ours == broker_content(run, empty_broker.url)
    assert len(ours[0]) == 2


def test_what_differs_is_shown_and_changed(run, empty_broker, clin_folder):
    """The commands show a difference by its path, and apply it: in schemas, lists, numbers and the number of
    partitions.
    """
    arguments = ("-f", str(clin_folder), "--env", "live")
    run("apply", *arguments, url=empty_broker.url)
    (clin_folder / "schemas/order.yaml").write_text(SCHEMA.replace("note: {", "total: {type: number}\n  note: {"))
    changed = EVENT_TYPE.replace("retentionTimeDays: 2", "retentionTimeDays: 3").replace("Count: 2", "Count: 4")
    (clin_folder / "definitions/order.yaml").write_text(
        changed.replace("- shop_billing", "- shop_billing\n        - mail")
    )
    (clin_folder / "definitions/a-subscription.yaml").write_text(SUBSCRIPTION.replace("[shop_billing]", "[shop_mail]"))

    dry = run("apply", *arguments, "--dry-run", url=empty_broker.url)
    diff = run("diff", *arguments, url=empty_broker.url)
    done = run("apply", *arguments, url=empty_broker.url)

    assert dry.code == done.code == 0, done.err
    assert diff.code == 1
    assert dry.out == diff.out == done.out
    shown = dry.out.splitlines()
    assert "~ event-type shop.order" in shown
    assert "= event-type shop.customer" in shown
    assert '    schema.properties.total: (nothing) -> {"type": "number"}' in shown
    assert "    options.retention_time: 172800000 -> 259200000" in shown
    assert "    partition_count: 2 -> 4" in shown
    assert any(line.startswith("    authorization.readers: ") and "service:mail" in line for line in shown)
    assert run("diff", *arguments, url=empty_broker.url).code == 0


def test_newly_required_properties_are_a_warning(run, empty_broker, tmp_path):
    """`diff` and `apply` warn of a permitted change after which the broker rejects what publishers send."""
    manifest = tmp_path / "order.yaml"
    text = """
kind: event-type
spec:
  name: shop.order
  category: undefined
  owningApplication: shop
  audience: company-internal
  schema:
    compatibility: forward
    jsonSchema: {type: object, properties: {a: {type: string}}%s}
"""
    manifest.write_text(text % "")
    assert run("apply", "-f", str(manifest), url=empty_broker.url).code == 0
    manifest.write_text(text % ", required: [a]")

    for options in (("--dry-run",), ("-o", "json")):
        done = run("apply", "-f", str(manifest), *options, url=empty_broker.url)
        assert done.code == 0
        said = done.json[0]["warnings"][0] if "json" in options else done.err
        assert "required" in said


def test_what_the_broker_refuses_is_said_and_the_rest_is_applied(run, empty_broker, clin_folder):
    """If the broker refuses a manifest, the command still applies the others, and its exit code says that the broker
    refused some.
    """
    run("apply", "-f", str(clin_folder), "--env", "live", url=empty_broker.url)
    (clin_folder / "schemas/order.yaml").write_text(SCHEMA.replace("note: {type: string}", "note: {type: integer}"))
    (clin_folder / "definitions/customer.yml").write_text(COMPACTED.replace('const: "2020-01-01"', "type: string"))

    done = run("apply", "-f", str(clin_folder), "--env", "live", url=empty_broker.url)

    assert done.code == 7
    assert "x event-type shop.order" in done.out
    assert "~ event-type shop.customer" in done.out
    assert "flow id" in done.err


def test_each_failure_is_said_once(run, empty_broker, clin_folder):
    """The command names each failure once, with its manifest; if it applied nothing, it ends with the exit code of
    the first failure.
    """
    run("apply", "-f", str(clin_folder), "--env", "live", url=empty_broker.url)
    (clin_folder / "schemas/order.yaml").write_text(SCHEMA.replace("note: {type: string}", "note: {type: integer}"))
    one = run("apply", "-f", str(clin_folder), "--env", "live", url=empty_broker.url)
    changed = COMPACTED.replace("compatibility: none", "compatibility: fixed").replace("2020", "2021")
    (clin_folder / "definitions/customer.yml").write_text(changed)
    two = run("apply", "-f", str(clin_folder), "--env", "live", url=empty_broker.url)

    assert one.code == two.code == 3
    assert one.err.startswith("Error: event-type shop.order: ")
    assert one.err.count("flow id") == one.err.count("shop.order: ") == 1, one.err
    assert two.err.count("flow id") == 2, two.err
    assert two.err.count("shop.order: ") == two.err.count("shop.customer: ") == 1
    assert two.err.splitlines()[-1] == "Error: None of 2 could be applied."


def test_what_the_files_do_not_name_is_deleted_on_request(run, empty_broker, clin_folder):
    """--prune deletes resources that belong to the files' applications but are in none of the manifests, once the user
    has typed the number of these resources.
    """
    arguments = ("-f", str(clin_folder), "--env", "live", "--prune")
    run("apply", *arguments, url=empty_broker.url)
    same = json.loads(run("event-types", "get", "shop.order", "-o", "json", url=empty_broker.url).out)
    for name, owner in (("shop.old", same["owning_application"]), ("shop.other", "another_application")):
        new = {"name": name, "owning_application": owner, "category": "undefined", "schema": same["schema"]}
        assert run("event-types", "create", "-f", "-", stdin=json.dumps(new), url=empty_broker.url).code == 0
    for owner in ("shop_billing", "another_application"):
        assert (
            run("subscriptions", "create", "shop.old", "shop.order", "--owner", owner, url=empty_broker.url).code == 0
        )

    dry = run("apply", *arguments, "--dry-run", url=empty_broker.url)
    diff = run("diff", *arguments, url=empty_broker.url)
    unconfirmed = run("apply", *arguments, stdin="3\n", url=empty_broker.url)
    before = run("apply", *arguments[:-1], "-o", "json", url=empty_broker.url)
    refused = run("apply", *arguments, stdin="2\n", url=empty_broker.url)
    [other] = run("subscriptions", "list", "--owner", "another_application", "-o", "json", url=empty_broker.url).json
    assert run("subscriptions", "delete", other["id"], "--yes", url=empty_broker.url).code == 0
    done = run("apply", *arguments, "--yes", "-o", "json", url=empty_broker.url)

    assert dry.out == diff.out
    assert dry.out.splitlines()[-2:] == [
        "- subscription shop_billing/default of shop.old, shop.order",
        "- event-type shop.old",
    ]
    assert (dry.code, diff.code, unconfirmed.code) == (0, 1, 2)
    assert "delete" not in {action for _, action in actions_in(before)}
    # The subscription of the other application prevents the deletion of the event type.
    assert refused.code == 7
    assert "shop.old: Can't remove" in refused.err
    assert actions_in(done)[3:] == [("event-type", "delete")]
    left = {each["name"] for each in run("event-types", "list", "shop.*", "-o", "json", url=empty_broker.url).json}
    assert left == {"shop.order", "shop.customer", "shop.other"}
    [kept] = run("subscriptions", "list", "-o", "json", url=empty_broker.url).json
    assert kept["consumer_group"] == "main"
    assert run("diff", *arguments, url=empty_broker.url).code == 0


def test_a_manifest_alone_takes_its_variables_from_the_environment(run, empty_broker, clin_folder, monkeypatch):
    """A single file, or a folder without a clin file, gets variables from the environment and from --var."""
    monkeypatch.setenv("TEAM", a_name())
    arguments = ("--var", "POSTFIX=_x", "--var", "ADMINS=ann", "--var", "ANY_READ=", "-o", "json")
    (clin_folder / "definitions/query.yaml").write_text(QUERY)

    one = run("apply", "-f", str(clin_folder / "definitions/order.yaml"), *arguments, url=empty_broker.url)
    all_of_them = run("apply", "-f", str(clin_folder / "definitions"), *arguments, url=empty_broker.url)

    assert actions_in(one) == [("event-type", "create")], one.err
    assert actions_in(all_of_them) == [
        ("event-type", "create"),
        ("event-type", "keep"),
        ("sql-query", "pass over"),
        ("subscription", "create"),
    ]


def test_an_environment_is_a_context_of_that_name(run, empty_broker, clin_folder):
    """`--env live` uses the broker of the context `live`, if it exists and nothing else names a broker."""
    run("contexts", "set", "other", "--url", "http://127.0.0.1:9")
    run("contexts", "set", "live", "--url", empty_broker.url)

    assert run("apply", "-f", str(clin_folder), "--env", "live", url=None).code == 0
    assert run("diff", "-f", str(clin_folder), "--env", "live", "--context", "other", url=None).code == 6


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.yaml": "kind: event-type\n"}, "`spec`"),
        ({"a.yaml": "kind: event-type\nspec: {name: '{{NONE}}'}\n"}, "the variable NONE has no value"),
        ({"a.yaml": "kind: topic\nspec: {}\n"}, "`kind`"),
        ({"a.yaml": "kind: [\n"}, "line 2"),
        ({"a.yaml": "kind: event-type\nspec: @@@a.yaml\n"}, "includes itself"),
        ({"a.yaml": "kind: event-type\nspec: @@@b.yaml\n"}, "b.yaml cannot be read"),
        ({"a.yaml": "kind: event-type\nspec: {name: 'x{{LIST}}'}\n"}, "cannot be part of a text"),
        ({"schema.yaml": "type: object\n"}, "no manifests"),
        ({"a.clin.yaml": "process: []\n", "b.clin.yaml": "process: []\n"}, "several clin files"),
        (
            {"a.clin.yaml": "process: [{target: a, paths: [x]}, {target: b, paths: [x]}]\n"},
            "choose one with --env: a, b",
        ),
        ({"a.clin.yaml": "process: [{target: a, paths: [x]}]\n"}, "there is no folder"),
        ({"a.clin.yaml": "process: {}\n"}, "`process` must be a list"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_their_names(tmp_path, files, said):
    """The command names the file with a mistake before it sends the first request to the broker."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    with pytest.raises(BadInput, match=said) as refused:
        read_manifests(tmp_path, {"LIST": [1]}, Chosen())
    assert str(tmp_path) in refused.value.message


def test_a_manifest_without_a_necessary_value_is_refused(run, empty_broker, tmp_path):
    """If a manifest lacks a necessary value, it is refused, and the message names the value."""
    (tmp_path / "a.yaml").write_text("kind: event-type\nspec: {name: a.b}\n")

    done = run("apply", "-f", str(tmp_path), url=empty_broker.url)

    assert done.code == 2
    assert "`schema` is missing" in done.err


def test_what_only_looks_special_stays(tmp_path):
    """Nested braces in YAML, `@@@` within a text, and values that look like dates stay unchanged."""
    text = "kind: event-type\nspec: {name: {a: {b: 'x @@@ y'}}, n: '{{ N }}', day: 2020-01-01}\n"
    (tmp_path / "a.yaml").write_text(text)

    [found] = read_manifests(tmp_path / "a.yaml", {"N": 3}, Chosen())

    assert found.spec == {"name": {"a": {"b": "x @@@ y"}}, "n": 3, "day": "2020-01-01"}
