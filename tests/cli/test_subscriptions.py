"""`nakadi subscriptions`."""

import _thread
import json
import signal
import threading
import time
import uuid
from functools import partial

import pytest

from nakadi_cli import subscription_commands
from nakadi_cli.api import Api
from tests.cli.test_tail import FOUR
from tests.support.api import create_event_type
from tests.support.patience import PATIENCE


@pytest.fixture
def numbers_event_type(api):
    """The name of an event type with four partitions, and forty events in them."""
    name = create_event_type(api, partition_strategy="hash", partition_key_fields=["n"], default_statistic=FOUR)["name"]
    assert api.post(f"/event-types/{name}/events", json=[{"n": n} for n in range(40)]).status_code == 200
    return name


@pytest.fixture
def owner():
    return f"app-{uuid.uuid4().hex}"


def created_by(run, *arguments):
    done = run("subscriptions", "create", *arguments)
    assert done.code == 0, done.err
    return done.out.strip()


def count_waiting(run, subscription):
    return sum(row["unconsumed_events"] for row in run("subscriptions", "lag", subscription, "-o", "json").json)


def test_a_subscription_lives_from_create_to_delete(run, numbers_event_type, owner):
    """A subscription is created once, listed by owner and event type, shown, and deleted when the user types the name
    of its application.
    """
    identity = created_by(run, numbers_event_type, "--owner", owner, "--group", "live")

    assert created_by(run, numbers_event_type, "--owner", owner, "--group", "live") == identity
    [found] = run("subscriptions", "list", "--owner", owner, "--event-type", numbers_event_type, "-o", "json").json
    assert (found["id"], found["consumer_group"]) == (identity, "live")
    assert identity in run("subscriptions", "list", "--owner", owner).out
    assert identity in run("subscriptions", "get", identity).out
    assert run("subscriptions", "delete", identity, stdin="other\n").code == 2
    assert run("subscriptions", "delete", identity, stdin=f"{owner}\n").code == 0
    assert run("subscriptions", "get", identity).code == 5


@pytest.mark.parametrize("alone", [False, True], ids=["this broker", "without statistics in lists"])
def test_subscriptions_are_listed_by_lag(run, numbers_event_type, owner, monkeypatch, alone):
    """`--lag` lists subscriptions with the most waiting events first, even if the broker's lists lack statistics."""
    done, some, new = (
        created_by(run, numbers_event_type, "--owner", owner, "--group", group, "--from", "begin") for group in "abc"
    )
    assert len(run("consume", done, "--no-follow").lines) == 40
    assert len(run("consume", some, "-n", "10").lines) == 10
    asked, get = [], Api.get

    def delete_during(api, where, **parameters):
        asked.append(where)
        found = get(api, where, **parameters)
        for each in found["items"] if alone and where == "/subscriptions" else ():
            del each["status"]
        return found

    monkeypatch.setattr(Api, "get", delete_during)
    found = run("subscriptions", "list", "--owner", owner, "--lag", "-o", "json").json
    table = run("subscriptions", "list", "--owner", owner, "--lag").out.splitlines()

    assert [(each["id"], each["waiting"]) for each in found] == [(some, 30), (new, None), (done, 0)]
    assert [each["state"] for each in found] == ["not read"] * 3
    assert found[0]["seconds"] >= 0
    assert table[0].split()[-3:] == ["STATE", "WAITING", "SECONDS"]
    assert table[1].startswith(some)
    assert len(asked) == (2 + 6 if alone else 2)


@pytest.mark.parametrize(("start", "count"), [("begin", 40), ("end", 0), ("1h", 40)])
def test_a_subscription_begins_where_it_is_asked_to(run, numbers_event_type, owner, start, count):
    """`create --from` takes the beginning, the end, or a time."""
    identity = created_by(run, numbers_event_type, "--owner", owner, "--from", start)

    assert len(run("consume", identity, "--no-follow").lines) == count


def test_a_subscription_is_created_from_a_file(run, numbers_event_type, owner, tmp_path):
    """A whole definition can be in a file, without options on the command line."""
    (tmp_path / "it.yaml").write_text(
        f"owning_application: {owner}\nevent_types: [{numbers_event_type}]\nread_from: begin\n"
    )

    assert created_by(run, "-f", str(tmp_path / "it.yaml"))
    assert run("subscriptions", "create", numbers_event_type, "-f", str(tmp_path / "it.yaml")).code == 2
    assert run("subscriptions", "create", numbers_event_type).code == 2


def test_a_subscription_is_changed_to_what_a_definition_says(run, api, numbers_event_type, owner):
    """The output of `get` can be edited and passed to `update`."""
    identity = created_by(run, numbers_event_type, "--owner", owner)
    definition = run("subscriptions", "get", identity, "-o", "json").json

    changed = json.dumps({**definition, "labels": {"team": "shipping"}})
    done = run("subscriptions", "update", identity, "-f", "-", stdin=changed)

    assert done.code == 0, done.err
    assert api.get(f"/subscriptions/{identity}").json()["labels"] == {"team": "shipping"}


def test_lag_is_shown_and_watched(run, numbers_event_type, owner, monkeypatch):
    """`lag` counts the waiting events of each partition, and `--watch` repeats that until Ctrl-C."""
    identity = created_by(run, numbers_event_type, "--owner", owner, "--from", "begin")
    before = run("subscriptions", "lag", identity)
    run("consume", identity, "-n", "10")
    pauses = []

    def wait(seconds):
        pauses.append(seconds)
        if len(pauses) >= 2:
            raise KeyboardInterrupt

    once = run("subscriptions", "lag", identity)
    # Replace only this command's pauses, because threads of the broker pause, too.
    monkeypatch.setattr(subscription_commands, "sleep", wait)
    watched = run("subscriptions", "lag", identity, "--watch", "--every", "7")

    assert before.err == "Before its first stream, the broker does not know how many wait.\n"
    assert once.err == "30 events waiting.\n"
    assert len(once.out.splitlines()) == 5
    assert watched.code == 130
    assert len(watched.out.splitlines()) == 10
    assert pauses == [7, 7]


def test_lag_leads_to_the_first_event_that_waits(run, numbers_event_type, owner):
    """`tail`, started at the cursor that `lag` shows, begins with the first event that is not committed."""
    identity = created_by(run, numbers_event_type, "--owner", owner, "--from", "begin")
    run("consume", identity, "-n", "10")
    table = run("subscriptions", "lag", identity).out.splitlines()
    rows = run("subscriptions", "lag", identity, "-o", "json").json
    [partition, cursor] = next([row["partition"], row["committed"]] for row in rows if row["unconsumed_events"])
    tailed = run("tail", numbers_event_type, "--from", cursor, "--partitions", partition, "-n", "1")

    assert [line.split()[-1] for line in table] == ["CURSOR", *(row["committed"] for row in rows)]
    assert tailed.out == run("consume", identity, "-n", "1").out, tailed.err


def test_lag_is_shown_of_a_blocked_subscription(run, numbers_event_type, owner):
    """While the event type is blocked, `lag` shows the number of waiting events, but no cursors."""
    identity = created_by(run, numbers_event_type, "--owner", owner, "--from", "begin")
    run("consume", identity, "-n", "10")
    assert run("admin", "block", "CONSUMER_ET", numbers_event_type).code == 0
    try:
        done = run("subscriptions", "lag", identity)
    finally:
        run("admin", "unblock", "CONSUMER_ET", numbers_event_type)

    assert done.err == "30 events waiting.\n"


def test_ctrl_c_is_not_overlooked(run, numbers_event_type, owner, monkeypatch, request):
    """A signal that comes just before a pause begins does not wait until the pause is over."""
    # If a script has started the tests in the background, they ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(partial(signal.signal, signal.SIGINT, before))
    identity = created_by(run, numbers_event_type, "--owner", owner)
    threads, ended = [], []

    def wait(seconds):
        # Like a signal that comes just before a call, this does not end a call that waits.
        threads.append(threading.Timer(0.1, _thread.interrupt_main))
        threads[0].start()
        time.sleep(seconds)
        ended.append(seconds)

    monkeypatch.setattr(subscription_commands, "sleep", wait)
    watched = run("subscriptions", "lag", identity, "--watch", "--every", str(int(PATIENCE)))
    threads[0].join()

    assert watched.code == 130
    assert ended == []


def test_a_reset_is_shown_before_it_is_made(run, numbers_event_type, owner):
    """With --dry-run a reset says how many events wait then, and changes nothing."""
    identity = created_by(run, numbers_event_type, "--owner", owner, "--from", "begin")
    run("consume", identity, "--no-follow")

    preview = run("subscriptions", "reset", identity, "--to", "begin", "--dry-run", "-o", "json").json

    assert sum(row["waiting"] for row in preview) == 0
    assert sum(row["waiting_then"] for row in preview) == 40
    assert all(row["committed"] for row in preview)
    assert count_waiting(run, identity) == 0


def test_a_subscription_is_reset(run, numbers_event_type, owner):
    """A reset moves a subscription to the beginning, to a time, to the end, or to offsets of some partitions."""
    identity = created_by(run, numbers_event_type, "--owner", owner, "--from", "end")
    run("consume", identity, "--no-follow")
    first = run("event-types", "partitions", numbers_event_type, "-o", "json").json[0]["oldest_available_offset"]
    reached = []
    for place in ("begin", "end", "1h", "1s", "end", f"0={first}", "end", f"{numbers_event_type}:0={first}"):
        assert run("subscriptions", "reset", identity, "--to", place).code == 0
        reached.append(count_waiting(run, identity))

    of_one_partition = reached[5]
    assert reached[:3] == [40, 0, 40]
    assert reached[4] == reached[6] == 0
    assert 0 < of_one_partition < 39
    assert reached[7] == of_one_partition


def test_a_reset_takes_the_offsets_of_several_partitions(run, numbers_event_type, owner):
    """Every --to counts: each moves its partition, and two offsets for one partition are refused."""
    identity = created_by(run, numbers_event_type, "--owner", owner, "--from", "end")
    partitions = run("event-types", "partitions", numbers_event_type, "-o", "json").json
    places = [f"{each['partition']}={each['oldest_available_offset']}" for each in partitions[:2]]

    apart = run("subscriptions", "reset", identity, "--to", places[0], "--to", places[1], "--dry-run", "-o", "json")
    together = run("subscriptions", "reset", identity, "--to", ",".join(places), "--dry-run", "-o", "json")

    assert [row["partition"] for row in apart.json] == [each["partition"] for each in partitions[:2]]
    assert apart.json == together.json
    assert run("subscriptions", "reset", identity, "--to", places[0], "--to", "0=1").code == 2
    assert run("subscriptions", "reset", identity, "--to", places[0], "--to", "begin").code == 2


def test_offsets_of_unknown_partitions_are_refused(run, numbers_event_type, owner):
    """A partition that does not exist is refused, instead of being ignored."""
    identity = created_by(run, numbers_event_type, "--owner", owner)

    assert run("subscriptions", "reset", identity, "--to", "9=1").code == 2
    assert run("subscriptions", "reset", identity, "--to", "other:0=1").code == 2
    assert run("subscriptions", "reset", identity, "--to", "001-0001-000000000000000001").code == 2


def test_an_objective_is_set_shown_and_removed(run, numbers_event_type, owner):
    """`objective` sets an objective, shows how it is met, and removes it. It fails if there is none, and refuses an
    incomplete one.
    """
    subscription = created_by(run, numbers_event_type, "--owner", owner)
    done = run("subscriptions", "objective", subscription, "--percent", "99.5", "--within", "30", "-o", "json")
    assert (done.json["percent"], done.json["within_seconds"], done.json["pressure"]) == (99.5, 30, 0)
    assert run("subscriptions", "objective", subscription, "-o", "json").json["set_at"] == done.json["set_at"]
    assert run("subscriptions", "objective", subscription, "--percent", "99").code == 2
    assert run("subscriptions", "objective", subscription, "--percent", "9", "--within", "1", "--remove").code == 2
    assert run("subscriptions", "objective", subscription, "--remove").code == 0
    assert run("subscriptions", "objective", subscription).code == 5


@pytest.mark.parametrize(
    ("members", "state"),
    [({}, "assigned"), ({"stalled": True}, "stalled"), ({"stalled": True, "unreadable": True}, "unreadable")],
)
def test_the_state_of_a_partition_says_what_is_wrong(members, state):
    """A partition that is stalled because streams cannot read it is shown as unreadable, which is the cause."""
    assert subscription_commands.LAG_COLUMNS["STATE"]({"state": "assigned", **members}) == state
