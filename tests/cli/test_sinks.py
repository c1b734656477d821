"""`nakadi sinks`."""

import pytest

from nakadi.local import Broker
from tests.support.builders import a_name
from tests.support.patience import until
from tests.support.receiver import ON_LOOPBACK, Receiver, delivering_quickly

DEFINITION = """
name: {name}
owning_application: shop
category: undefined
schema: {{"type": "json_schema", "schema": "{{}}"}}
"""


@pytest.fixture(scope="module")
def delivering_broker():
    """A broker that may deliver to sinks on this machine."""
    with delivering_quickly(), Broker(**ON_LOOPBACK, sink_targets=("arn:aws:sqs:eu-central-1:123456789012:*",)) as own:
        yield own


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def run_against_delivering_broker(run, delivering_broker):
    """A function that runs a command against the broker that delivers."""
    return lambda *arguments, **rest: run(*arguments, url=delivering_broker.url, **rest)


@pytest.fixture
def subscription(run_against_delivering_broker):
    """The id of a subscription, and the name of its event type."""
    name = a_name()
    assert (
        run_against_delivering_broker("event-types", "create", "-f", "-", stdin=DEFINITION.format(name=name)).code == 0
    )
    return run_against_delivering_broker(
        "subscriptions", "create", name, "--owner", "shop", "--from", "begin"
    ).out.strip(), name


def test_a_sink_gets_events_once_it_is_set(run_against_delivering_broker, subscription, receiver):
    """`set` shows the generated secret, and the receiver gets the events; `show` hides secrets."""
    subscription, name = subscription

    made = run_against_delivering_broker(
        "sinks", "set", subscription, "--to", receiver.url, "--header", "X-Token: hush", "-o", "json"
    )
    run_against_delivering_broker("publish", name, stdin='{"n": 1}\n{"n": 2}\n')

    assert made.code == 0, made.err
    assert made.json["secret"].startswith("whsec_")
    assert receiver.wait_for(2) == [{"n": 1}, {"n": 2}]
    assert receiver.received[0].headers["x-token"] == "hush"
    shown = run_against_delivering_broker("sinks", "show", subscription, "-o", "json")
    assert (shown.json["url"], shown.json["state"]) == (receiver.url, "active")
    assert "whsec_" not in shown.out
    assert "hush" not in shown.out


def test_a_sink_is_set_from_a_file(run_against_delivering_broker, subscription, receiver, tmp_path):
    """A file may have the whole sink; options and a file exclude each other."""
    (tmp_path / "sink.yaml").write_text(f"type: http\nurl: {receiver.url}\nbatch_limit: 7\n")
    file = str(tmp_path / "sink.yaml")

    made = run_against_delivering_broker("sinks", "set", subscription[0], "-f", file, "-o", "json")

    assert made.json["batch_limit"] == 7
    options = ("--max-in-flight", "2", "--parallel", "key", "--filter", "n > 1")
    again = run_against_delivering_broker(
        "sinks", "set", subscription[0], "--to", receiver.url, *options, "-o", "json"
    ).json
    assert (again["batch_limit"], again["max_in_flight"], again["filter"]) == (100, 2, "n > 1")
    assert again["parallel"] == "key"
    assert "secret" not in again
    assert run_against_delivering_broker("sinks", "set", subscription[0], "-f", file, "--batch-limit", "8").code == 2
    assert run_against_delivering_broker("sinks", "set", subscription[0]).code == 2
    assert (
        run_against_delivering_broker(
            "sinks", "set", subscription[0], "--to", receiver.url, "--header", "no colon"
        ).code
        == 2
    )


def test_an_arn_says_what_type_a_sink_is(run_against_delivering_broker, subscription):
    """The service in the ARN decides the type; the broker decides whether it may deliver to that service."""
    queue = "arn:aws:sqs:eu-central-1:123456789012:orders.fifo"
    made = run_against_delivering_broker("sinks", "set", subscription[0], "--to", queue, "-o", "json")
    assert made.code == 0, made.err
    assert (made.json["type"], made.json["queue"]) == ("sqs", queue)
    refused = run_against_delivering_broker("sinks", "set", subscription[0], "--to", queue.replace("sqs", "sns"))
    assert refused.code != 0
    assert "NAKADI_SINK_TARGETS" in refused.err
    assert run_against_delivering_broker("sinks", "set", subscription[0], "--to", queue.replace("sqs", "s3")).code == 2
    assert run_against_delivering_broker("sinks", "set", subscription[0], "--to", "arn:aws").code == 2


def test_a_sink_is_tested(run_against_delivering_broker, subscription, receiver):
    """`test` shows the sink's answer, and its exit code says whether the delivery succeeded."""
    run_against_delivering_broker("sinks", "set", subscription[0], "--to", receiver.url)

    good = run_against_delivering_broker("sinks", "test", subscription[0], "-o", "json")
    receiver.decide = lambda _: 500
    bad = run_against_delivering_broker("sinks", "test", subscription[0], "-o", "json")

    assert (good.code, good.json["status"]) == (0, 204)
    assert (bad.code, bad.json["status"], bad.json["text"]) == (1, 500, "cannot read it")


def test_the_last_failure_is_shown_first(run_against_delivering_broker, subscription, receiver):
    """If deliveries to a sink have failed, the output of `show` begins with the last failure, and otherwise has the
    same members.
    """
    subscription, name = subscription
    receiver.decide = lambda _: 500
    run_against_delivering_broker("sinks", "set", subscription, "--to", receiver.url)
    run_against_delivering_broker("publish", name, stdin='{"n": 1}\n')
    until(lambda: run_against_delivering_broker("sinks", "show", subscription).out.startswith("deliveries:"))

    shown = run_against_delivering_broker("sinks", "show", subscription).out
    assert shown.splitlines()[1].strip() == "last_failure:"
    assert "cannot read it" in shown
    as_json = run_against_delivering_broker("sinks", "show", subscription, "-o", "json").json
    assert {"deliveries", "type", "url", "state"} <= as_json.keys()


def test_a_sink_is_paused_and_resumed(run_against_delivering_broker, subscription, receiver):
    """`pause` and `resume` change the state of the sink."""
    run_against_delivering_broker("sinks", "set", subscription[0], "--to", receiver.url)
    states = []
    for command in ("pause", "resume"):
        assert run_against_delivering_broker("sinks", command, subscription[0]).code == 0
        states.append(run_against_delivering_broker("sinks", "show", subscription[0], "-o", "json").json["state"])
    assert states == ["paused", "active"]


def test_a_secret_is_rotated(run_against_delivering_broker, subscription, receiver):
    """`rotate-secret` prints only the new secret to standard output, so a script can store it."""
    first = run_against_delivering_broker("sinks", "set", subscription[0], "--to", receiver.url, "-o", "json").json[
        "secret"
    ]

    done = run_against_delivering_broker("sinks", "rotate-secret", subscription[0])

    assert done.out.startswith("whsec_")
    assert done.out.strip() != first
    assert (
        run_against_delivering_broker("sinks", "rotate-secret", subscription[0], "-o", "json").json["secret"]
        != done.out.strip()
    )


def test_a_sink_is_removed(run_against_delivering_broker, subscription, receiver):
    """`remove` asks for the id of the subscription, which stays."""
    run_against_delivering_broker("sinks", "set", subscription[0], "--to", receiver.url)

    assert run_against_delivering_broker("sinks", "remove", subscription[0], stdin="no\n").code == 2
    assert run_against_delivering_broker("sinks", "remove", subscription[0], stdin=f"{subscription[0]}\n").code == 0
    assert run_against_delivering_broker("sinks", "show", subscription[0]).code == 5
    assert run_against_delivering_broker("subscriptions", "get", subscription[0]).code == 0
