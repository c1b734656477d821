"""`nakadi tail`."""

import json
import os
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime

import httpx
import pytest

from nakadi.engines.archive.stores import MARKER_FILE, UNFINISHED_SUFFIX
from nakadi.streaming import feeds
from nakadi_cli.cursors import Start, parse_start
from nakadi_cli.failures import BadInput
from nakadi_client import Patience
from tests.support.api import create_event_type
from tests.support.patience import PATIENCE, until
from tests.support.processes import ROOT_ENVIRONMENT, run_process
from tests.support.served import ServedBroker

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
FOUR = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 4, "write_parallelism": 4}


@pytest.fixture
def numbers_event_type(api):
    """The name of an event type with four partitions, and forty events in them."""
    name = create_event_type(api, partition_strategy="hash", partition_key_fields=["n"], default_statistic=FOUR)["name"]
    assert api.post(f"/event-types/{name}/events", json=[{"n": n} for n in range(40)]).status_code == 200
    return name


def test_all_partitions_are_read_from_the_beginning(run, numbers_event_type):
    """`--from begin --no-follow` prints all existing events, one per line, and ends."""
    found = run("tail", numbers_event_type, "--from", "begin", "--no-follow").lines

    assert sorted(event["n"] for event in found) == list(range(40))


def test_numbers_keep_all_of_their_digits(run, api):
    """`tail` and `consume` write stored events unchanged, including numbers that Python cannot represent."""
    name, text = create_event_type(api)["name"], '{"price":1.10,"share":0.12345678901234567890}'
    assert run("publish", name, stdin=f"{text}\n" * 2).code == 0
    subscription = run("subscriptions", "create", name, "--owner", "digits", "--from", "begin").out.strip()

    assert run("tail", name, "--from", "begin", "--no-follow").out == f"{text}\n" * 2
    assert run("consume", subscription, "--no-follow").out == f"{text}\n" * 2


def test_nothing_is_there_behind_the_end(run, numbers_event_type):
    """Without `--from`, `tail` begins at the end; with `--no-follow`, it then prints nothing, and ends."""
    assert run("tail", numbers_event_type, "--no-follow").lines == []


def test_events_are_chosen_by_a_condition(run, numbers_event_type):
    """`--where` skips events that do not match, and `-n` counts only matching ones."""
    found = run("tail", numbers_event_type, "--from", "begin", "--no-follow", "--where", "n >= 10 and n < 13").lines

    assert sorted(event["n"] for event in found) == [10, 11, 12]
    assert len(run("tail", numbers_event_type, "--from", "1h", "-n", "2", "--where", "n > 5").lines) == 2
    assert run("tail", numbers_event_type, "--where", "n >").code == 2


def test_some_partitions_are_read(run, numbers_event_type):
    """`--partitions` reads only the named partitions, and refuses partitions that do not exist."""
    two = run("tail", numbers_event_type, "--from", "begin", "--no-follow", "--partitions", "0,2", "-o", "table").out
    rest = run("tail", numbers_event_type, "--from", "begin", "--no-follow", "--partitions", "1,3").lines

    assert {line.split()[0] for line in two.splitlines()} == {"0", "2"}
    assert len({tuple(line.split()[:2]) for line in two.splitlines()}) == len(two.splitlines())
    assert len(two.splitlines()) + len(rest) == 40
    assert run("tail", numbers_event_type, "--partitions", "9").code == 2


def test_an_offset_is_a_place_in_one_partition(run, numbers_event_type):
    """`--from` takes the offset after which to start, for one partition, or for each partition."""
    lines = run(
        "tail", numbers_event_type, "--from", "begin", "--no-follow", "--partitions", "0", "-o", "table"
    ).out.splitlines()
    first = run("event-types", "partitions", numbers_event_type, "-o", "json").json[0]["oldest_available_offset"]

    alone = run("tail", numbers_event_type, "--from", first, "--no-follow", "--partitions", "0").lines
    named = run("tail", numbers_event_type, "--from", f"0={first}", "--no-follow").lines

    assert len(alone) == len(lines) - 1
    assert named == alone
    assert run("tail", numbers_event_type, "--from", first).code == 2


@pytest.mark.parametrize(
    "shell", [(), ("sh", "-c", 'trap "" INT; exec "$@"', "sh")], ids=["in front", "in the background"]
)
def test_what_comes_is_shown_until_ctrl_c(broker, api, numbers_event_type, shell):
    """`tail` shows events as they arrive, and Ctrl-C ends it without a traceback, even if a shell made it ignore the
    signal.
    """
    command = [*shell, sys.executable, "-W", "error", "-m", "nakadi_cli", "tail", numbers_event_type, "--from", "begin"]
    with run_process([*command, "--url", broker.url], ROOT_ENVIRONMENT) as process:
        for _ in range(40):
            process.stdout.readline()
        api.post(f"/event-types/{numbers_event_type}/events", json=[{"n": 40}])
        assert json.loads(process.stdout.readline())["n"] == 40
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    # The process ends by the signal, which shells show as 130.
    assert process.returncode == -signal.SIGINT
    assert said.strip() == ""


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("begin", Start("BEGIN")),
        ("END", Start()),
        ("15m", Start("2026-11-22T11:45:00.000000Z")),
        ("2d", Start("2026-11-20T12:00:00.000000Z")),
        ("2026-11-21T12:00:00+01:00", Start("2026-11-21T11:00:00.000000Z")),
        ("001-0001-000000000000000012", Start("001-0001-000000000000000012")),
        ("12", Start("12")),
        ("0=1,a:1=-1", Start(by_partition={"0": "1", "a:1": "-1"})),
    ],
)
def test_a_place_to_start_is_understood(text, start):
    """`--from` understands words, times, ages and offsets."""
    assert parse_start(text, NOW) == start


@pytest.mark.parametrize("text", ["", "soon", "2026-13-41", "15y", "0=", "=1", "0=x", "001-1"])
def test_what_is_no_place_to_start_is_refused(text):
    """`--from` refuses any other value, with a message that has examples."""
    with pytest.raises(BadInput, match="such as 2026"):
        parse_start(text, NOW)


def test_events_are_shown_as_cloud_events(run, numbers_event_type):
    """Each CloudEvent comes with its position in every output format, and conditions apply to CloudEvents. (E20,
    E21)
    """
    arguments = ("tail", numbers_event_type, "--from", "begin", "--no-follow", "--cloudevents", "--where", "data.n < 5")
    found = run(*arguments).lines
    assert sorted(each["data"]["n"] for each in found) == list(range(5))
    assert {each["specversion"] for each in found} == {"1.0"}

    # The order of events in different partitions may differ between the two runs.
    shown = {tuple(line.split()[:2]) for line in run(*arguments, "-o", "table").out.splitlines()}
    assert shown == {(each["partition"], each["offset"]) for each in found}


@pytest.fixture
def archiving_broker(tmp_path, monkeypatch):
    """A broker that archives events at once, and commands that soon give up."""
    monkeypatch.setattr(feeds, "MIN_READ_RETRY_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("nakadi_cli.patience.PATIENCE", Patience(without_answer=0.5, without_slot=80))
    url = f"sqlite:///{tmp_path}/nakadi.db"
    settings = {"archive": str(tmp_path / "archive"), "archive_after_seconds": 0, "hot_retention_ms": 0}
    with ServedBroker(registry=url, event_log=url, **settings) as broker:
        yield broker


@pytest.fixture
def archived_event_type(archiving_broker):
    """The name of an event type with twenty events, of which all but the newest are only in the archive."""
    with httpx.Client(base_url=archiving_broker.url, timeout=PATIENCE) as api:
        name = create_event_type(api)["name"]
        for n in range(20):
            assert api.post(f"/event-types/{name}/events", json=[{"n": n}]).status_code == 200
    topic, log = archiving_broker.services.event_types.get(name).timeline.topic, archiving_broker.log
    until(lambda: log.archive() or log._hot.bounds(topic, [0])[0].oldest > 0)
    return name


def test_events_that_cannot_be_read_are_not_left_out(run, archiving_broker, archived_event_type, tmp_path):
    """While the archive is missing, commands that end at the last event fail, and say why; they do not take a silent
    stream for the end. Once the archive is back, they get all events. (L81, S341)
    """
    name, url = archived_event_type, archiving_broker.url
    subscription = run("subscriptions", "create", name, "--owner", "x", "--from", "begin", url=url).out.strip()
    commands = [
        ("tail", name, "--from", "begin", "--no-follow"),
        ("tail", name, "--from", "begin", "--no-follow", "--cloudevents"),
        ("consume", subscription, "--no-follow"),
    ]

    (tmp_path / "archive").rename(tmp_path / "away")
    for command in commands:
        found = run(*command, url=url)
        assert (found.code, found.out) == (6, ""), found
        what = "The next events" if command[0] == "consume" else "Events up to 001-0001-000000000000000019"
        last = found.err.splitlines()[-1]
        assert found.err.splitlines()[0].endswith("See NakadiArchiveCannotBeRead in docs/operations.md. Trying again.")
        assert last.startswith(f"Error: {what} of partition 0 of {name} "), found.err
        assert "not be read" in last or "cannot be read" in last
        assert last.endswith("See NakadiArchiveCannotBeRead in docs/operations.md."), found.err
    (tmp_path / "away").rename(tmp_path / "archive")
    assert [len(run(*command, url=url).lines) for command in commands] == [20, 20, 20]


def test_an_archive_that_hangs_does_not_stop_a_command_for_ever(
    run, archiving_broker, archived_event_type, tmp_path, monkeypatch
):
    """If reads of the archive do not end, such as those of a file system on a server that is down, a command that ends
    at the last event fails, and says why. (L81)
    """
    monkeypatch.setattr(feeds, "SLOW_READ_SECONDS", 0.3)
    # The broker may still be archiving later events.
    kept = [path for path in (tmp_path / "archive").rglob("*") if path.suffix != UNFINISHED_SUFFIX]
    archived = [path for path in kept if path.is_file() and path.name != MARKER_FILE]
    for path in archived:
        path.unlink()
        os.mkfifo(path)  # opening it waits for a writer

    found = run("tail", archived_event_type, "--from", "begin", "--no-follow", url=archiving_broker.url)

    for path in archived:
        with suppress(OSError):  # no read waits for it
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    assert (found.code, found.out) == (6, ""), found
    last = found.err.splitlines()[-1]
    assert last.startswith(f"Error: Events up to 001-0001-000000000000000019 of partition 0 of {archived_event_type} ")
    assert " exist, but could not be read: The log has not answered for " in last
