"""`nakadi consume`."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from nakadi_client import NoAnswer
from nakadi_client.connections import Api
from tests.support.api import create_event_type
from tests.support.builders import a_name
from tests.support.patience import PATIENCE, until
from tests.support.processes import ROOT_ENVIRONMENT, run_process
from tests.support.served import ServedBroker


@pytest.fixture
def subscription_to_20_events(run, api):
    """The id of a subscription that begins before twenty events in one partition."""
    name = create_event_type(api)["name"]
    assert api.post(f"/event-types/{name}/events", json=[{"n": n} for n in range(20)]).status_code == 200
    return run("subscriptions", "create", name, "--owner", a_name(), "--from", "begin").out.strip()


def count_waiting(run, subscription_to_20_events):
    return sum(
        row["unconsumed_events"] for row in run("subscriptions", "lag", subscription_to_20_events, "-o", "json").json
    )


def start_consumer(subscription_to_20_events, *arguments, url):
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "nakadi_cli",
        "consume",
        subscription_to_20_events,
        "--url",
        url,
        *arguments,
    ]
    return run_process(command, ROOT_ENVIRONMENT)


def loop_until_parent_ends(condition="true"):
    """A shell command that loops while a condition holds, and as long as the process that started it lives."""
    return f"while {condition} && kill -0 $PPID; do sleep 0.05; done"


def make_interrupted_send(is_over, *numbers, only=""):
    """Return a function for `Api.send` during which these signals arrive, and which gets no answer before the
    interruption.
    """
    send = Api.send

    def send_and_be_signalled(api, request):
        if not request.path.endswith(only):
            return send(api, request)
        for number in numbers:
            os.kill(os.getpid(), number)
        is_over.wait(PATIENCE)
        return NoAnswer("The command has ended.")

    return send_and_be_signalled


def test_events_are_written_and_committed(run, subscription_to_20_events):
    """The command writes each event as a line, commits written events, and ends after the number of events in `-n`."""
    assert [
        event["n"] for event in run("consume", subscription_to_20_events, "-n", "7", "--batch-size", "3").lines
    ] == [*range(7)]
    assert count_waiting(run, subscription_to_20_events) == 13
    assert [event["n"] for event in run("consume", subscription_to_20_events, "--no-follow").lines] == [*range(7, 20)]
    assert run("consume", subscription_to_20_events, "--no-follow").lines == []


def test_a_command_takes_each_batch(run, subscription_to_20_events, tmp_path):
    """`consume` runs the given command for each batch, with the events on its standard input and their position in
    its environment.
    """
    line = f'cat >> {tmp_path}/events; echo "$NAKADI_EVENT_TYPE $NAKADI_PARTITION $NAKADI_OFFSET" >> {tmp_path}/places'

    done = run("consume", subscription_to_20_events, "--no-follow", "--batch-size", "8", "--exec", line)

    assert done.code == 0
    assert "20 events committed." in done.err
    assert (tmp_path / "events").read_text() == "".join(f'{{"n":{n}}}\n' for n in range(20))
    places = [place.split() for place in (tmp_path / "places").read_text().splitlines()]
    assert [place[1:] for place in places] == [
        ["0", "001-0001-000000000000000007"],
        ["0", "001-0001-000000000000000015"],
        ["0", "001-0001-000000000000000019"],
    ]


def test_what_a_command_failed_at_is_not_committed(run, subscription_to_20_events):
    """If the given command fails, `consume` ends with exit code 1; earlier batches stay committed, and the other events
    are delivered again.
    """
    done = run(
        "consume",
        subscription_to_20_events,
        "--batch-size",
        "5",
        "--commit-timeout",
        "1",
        "--exec",
        "! grep -q '\"n\":7'",
    )

    assert done.code == 1
    assert "exit code 1" in done.err
    assert "not committed" in done.err
    assert [event["n"] for event in run("consume", subscription_to_20_events, "--no-follow").lines] == [*range(5, 20)]


def test_what_was_not_committed_goes_to_the_next_consumer_at_once(run, api, subscription_to_20_events):
    """A consumer whose command fails leaves its stream, so the next consumer does not wait for its commit timeout.
    (S324)
    """
    assert run("consume", subscription_to_20_events, "--exec", "false").code == 1
    assert api.head(f"/subscriptions/{subscription_to_20_events}/events").status_code == 200
    [item] = api.get(f"/subscriptions/{subscription_to_20_events}/stats").json()["items"]
    assert [each["state"] for each in item["partitions"]] == ["unassigned"]


def test_a_consumer_that_is_killed_releases_its_partitions(broker, api, subscription_to_20_events, tmp_path):
    """When a killed consumer's connection ends, its stream ends, and its partitions are free. (S329)"""
    line = f"touch {tmp_path}/began; {loop_until_parent_ends()}"
    with start_consumer(subscription_to_20_events, "--exec", line, url=broker.url) as process:
        until((tmp_path / "began").exists)
        assert api.head(f"/subscriptions/{subscription_to_20_events}/events").status_code == 409
        process.kill()
        until(lambda: api.head(f"/subscriptions/{subscription_to_20_events}/events").status_code == 200, 30)


def test_a_command_gets_more_time_while_it_works(run, subscription_to_20_events, tmp_path, monkeypatch):
    """A consumer extends its commit timeout until the command has ended. (S330)"""
    send, answers = Api.send, []

    def send_and_note(api, request):
        answer = send(api, request)
        if request.path.endswith("/extend"):
            answers.append(answer.status)
            if len(answers) == 3:
                (tmp_path / "go").touch()
        return answer

    monkeypatch.setattr(Api, "send", send_and_note)
    # The consumer extends its commit timeout every tenth of a second, instead of every 24 s.
    monkeypatch.setattr("nakadi_client.consumer_core._LIFE_PART", 1 / 600)
    monkeypatch.setattr("nakadi_client.consumer_core._GLANCE_PART", 1 / 600)
    line = f"cat > /dev/null; {loop_until_parent_ends(f'[ ! -e {tmp_path}/go ]')}"
    done = run("consume", subscription_to_20_events, "--no-follow", "--exec", line)
    monkeypatch.undo()

    assert (done.code, done.err) == (0, "20 events committed.\n")
    assert set(answers) == {200}


def test_a_consumer_says_that_its_stream_was_ended(broker, api, subscription_to_20_events, caplog):
    """If another client's request ends the stream of a consumer, the broker logs that, and the consumer reports that it
    opens another stream.
    """
    caplog.set_level("INFO", "nakadi.subscriptions.stream.streams")
    with start_consumer(subscription_to_20_events, url=broker.url) as process:
        for _ in range(20):
            process.stdout.readline()
        [item] = api.get(f"/subscriptions/{subscription_to_20_events}/stats").json()["items"]
        first = item["partitions"][0]["stream_id"]
        assert api.delete(f"/subscriptions/{subscription_to_20_events}/streams/{first}").status_code == 204
        # The consumer reports the end before it writes the first event of its next stream.
        assert api.post(f"/event-types/{item['event_type']}/events", json=[{"n": 20}]).status_code == 200
        while '"n":20' not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)

    assert errors.count("The stream has ended, and this consumer opens another.") == 1
    if isinstance(broker, ServedBroker):  # another process has the log of a deployment
        assert f"The stream {first} of" in caplog.text
        assert "ended: a request ended it, from its client or an operator" in caplog.text


def test_an_unknown_subscription_is_exit_code_5(run):
    """If the subscription does not exist, the command ends at once, with exit code 5."""
    assert run("consume", "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11").code == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_batch_at_hand_be_finished(run, broker, subscription_to_20_events, tmp_path, number):
    """After a signal, the given command finishes its batch, `consume` commits the batch, and no other batch begins."""
    line = f"cat > /dev/null; echo $$ >> {tmp_path}/began; {loop_until_parent_ends(f'[ ! -e {tmp_path}/go ]')}"
    with start_consumer(subscription_to_20_events, "--batch-size", "6", "--exec", line, url=broker.url) as process:
        until((tmp_path / "began").exists)
        process.send_signal(number)
        (tmp_path / "go").touch()
        _, said = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0, said
    assert said == "6 events committed.\n"
    assert len((tmp_path / "began").read_text().splitlines()) == 1
    assert count_waiting(run, subscription_to_20_events) == 14


def test_a_second_signal_ends_the_command_as_well(run, broker, subscription_to_20_events, tmp_path):
    """A second signal ends a command that does not end by itself, and its batch is not committed."""
    line = f"touch {tmp_path}/began; {loop_until_parent_ends()}"
    with start_consumer(subscription_to_20_events, "--exec", line, url=broker.url) as process:
        until((tmp_path / "began").exists)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)

    assert process.returncode == 1
    assert "not committed" in said
    assert count_waiting(run, subscription_to_20_events) == 20


def test_a_second_signal_ends_a_command_that_is_just_beginning(run, subscription_to_20_events, tmp_path, monkeypatch):
    """Two signals end a command even if both come before the consumer knows that the command runs."""

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **how):
            super().__init__(*arguments, **how)
            until((tmp_path / "began").exists)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    done = run("consume", subscription_to_20_events, "--exec", f"touch {tmp_path}/began; {loop_until_parent_ends()}")
    monkeypatch.undo()

    assert done.code == 1
    assert "not committed" in done.err
    assert count_waiting(run, subscription_to_20_events) == 20


def test_a_second_signal_finds_a_command_that_has_just_ended(run, subscription_to_20_events, monkeypatch):
    """A second signal is harmless when the command has already ended; its batch is committed."""

    class Popen(subprocess.Popen):
        def communicate(self, *arguments, **how):
            said = super().communicate(*arguments, **how)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            return said

    monkeypatch.setattr(subprocess, "Popen", Popen)
    done = run("consume", subscription_to_20_events, "--batch-size", "6", "--exec", "cat > /dev/null")
    monkeypatch.undo()

    assert (done.code, done.err) == (0, "6 events committed.\n")
    assert count_waiting(run, subscription_to_20_events) == 14


def test_a_second_signal_ends_a_commit_that_is_not_answered(run, subscription_to_20_events, monkeypatch):
    """A commit continues after the first signal, but not after the second: a broker may take long to answer, or never
    answer.
    """
    monkeypatch.setattr(Api, "send", make_interrupted_send(is_over := threading.Event(), signal.SIGINT, signal.SIGTERM))
    done = run("consume", subscription_to_20_events)
    is_over.set()
    monkeypatch.undo()

    assert (done.code, len(done.lines)) == (0, 20)
    assert count_waiting(run, subscription_to_20_events) == 20


def test_a_signal_ends_looking_whether_something_waits(run, subscription_to_20_events, monkeypatch):
    """Between two streams, nothing is in progress, so one signal ends the consumer."""
    monkeypatch.setattr(Api, "send", make_interrupted_send(is_over := threading.Event(), signal.SIGINT, only="/stats"))
    done = run("consume", subscription_to_20_events, "--no-follow")
    is_over.set()
    monkeypatch.undo()

    assert (done.code, done.err) == (0, "")
    assert count_waiting(run, subscription_to_20_events) == 0


def test_a_signal_ends_waiting(broker, subscription_to_20_events):
    """After a signal, a consumer that waits for events ends at once, with exit code 0."""
    with start_consumer(subscription_to_20_events, url=broker.url) as process:
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0
    assert said == ""
