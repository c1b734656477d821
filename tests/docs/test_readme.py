"""The README's quick start works as written."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from nakadi.local import Broker
from tests.support.environment import plain_environment
from tests.support.pasted import run_pasted_command
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
QUICK_START = re.search(r"<!-- quick start -->\n```sh\n(.*?)```", README, re.DOTALL)[1]
SUBSCRIPTION = re.search(r"<!-- subscription -->\n```sh\n(.*?)```", README, re.DOTALL)[1]
COMMANDS = [line for line in QUICK_START.splitlines() if line.startswith("curl")]


@pytest.fixture(scope="module")
def quick_start_outputs():
    """The output of each line of the quick start, pasted line by line."""
    with Broker() as broker:
        return [run_pasted_command(command.replace("http://127.0.0.1:8080", broker.url)) for command in COMMANDS]


def test_the_event_type_is_registered(quick_start_outputs):
    """The first line creates the event type."""
    assert quick_start_outputs[0] == (201, "")


def test_the_events_are_published(quick_start_outputs):
    """The second line publishes the batch."""
    assert quick_start_outputs[1] == (200, "")


def test_the_refusal_is_shown(quick_start_outputs):
    """The broker refuses the batch of the third line, and the response says for each event that it is failed or
    aborted.
    """
    status, body = quick_start_outputs[2]

    assert status == 422
    assert {each["publishing_status"] for each in json.loads(body)} <= {"failed", "aborted"}


def test_the_events_are_streamed(quick_start_outputs):
    """The fourth line prints the three events, and ends."""
    status, body = quick_start_outputs[3]
    events = [event for line in body.splitlines() for event in json.loads(line).get("events", [])]

    assert status == 200
    assert len(events) == 3
    assert all(event["metadata"]["received_at"] for event in events)


def test_a_subscription_is_consumed(tmp_path):
    """The lines about subscriptions, pasted together, open a stream, commit a batch, and show how many events wait."""
    with Broker() as broker:
        for command in COMMANDS[:2]:
            run_pasted_command(command.replace("http://127.0.0.1:8080", broker.url))
        done = subprocess.run(
            ["bash", "-mc", SUBSCRIPTION.replace("http://127.0.0.1:8080", broker.url)],
            cwd=tmp_path,
            env=plain_environment(),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=True,
        )
    status, stats = done.stdout.splitlines()
    [event_type] = json.loads(stats)["items"]

    assert status == "204"
    assert sum(each["unconsumed_events"] for each in event_type["partitions"]) < 3
    assert len({each["stream_id"] for each in event_type["partitions"]}) == 1
