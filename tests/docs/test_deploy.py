"""The parts of the AWS guide that need no account lead to a first event."""

import json
import re
from pathlib import Path

from nakadi.app.settings import Settings
from nakadi.auth import key_set
from nakadi.common import caching
from nakadi.engines.kinesis import stream
from nakadi.engines.kinesis.continuity import RETRY_TIMEOUT_SECONDS
from nakadi.engines.kinesis.event_log import DEFAULT_OPTIONS
from nakadi.engines.kinesis.tails import RETRY_AFTER_REFUSAL_SECONDS
from nakadi.local import Broker
from nakadi.publishing.system_events import KPI_WRITE_INTERVAL_SECONDS
from nakadi.streaming import access
from tests.support.pasted import run_pasted_command

GUIDE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
FIRST_EVENT = GUIDE.partition("**4. The first event.**")[2].partition("\n## ")[0]
COMMANDS = [line for line in re.search(r"```sh\n(.*?)```", FIRST_EVENT, re.DOTALL)[1].splitlines() if "${URL}" in line]


def test_the_first_event_of_a_deployment_is_published_and_streamed():
    """The guide's requests create an event type, publish a batch, and read a stream that ends with the first event of a
    partition.
    """
    with Broker() as broker:
        made, published, streamed = [run_pasted_command(each, URL=f"{broker.url}/", TOKEN="t") for each in COMMANDS]

    assert (made[0], published[0], streamed[0]) == (201, 200, 200)
    assert len(json.loads(streamed[1].splitlines()[0])["events"]) == 1


def test_the_ages_of_what_is_remembered_are_those_of_the_code():
    """The guide states how old each cache may be, and how many streams may begin at once, as the code has it. (R295,
    L76)
    """
    ages = GUIDE.partition("\n## When a change is in force\n")[2].partition("\n## A new version")[0]
    leave = stream.MAX_WAIT_TO_BEGIN_READING_SECONDS
    said = (
        f"`NAKADI_CACHE_SECONDS`, {('no', 'one')[Settings().cache_seconds]} second by default",
        f"{round(100 * (caching.CLOCK_DRIFT_FACTOR - 1))} % because clocks run",
        f"{access.CHECK_INTERVAL_SECONDS + Settings().cache_seconds:.0f} s: it checks once a second",
        f"{key_set.KEY_SET_MAX_AGE_SECONDS:.0f} s in each process, plus",
        f"{caching.MAX_CACHE_ENTRY_AGE_SECONDS:.0f} s in each process |",
        f"housekeeping has removed events | {DEFAULT_OPTIONS.lease:.0f} s",
        f"at most {KPI_WRITE_INTERVAL_SECONDS:.0f} s late",
        f"more than {leave:.0f} s later, the task refuses it at once",
        f"each shard and task has room for {leave * 5:.0f} such streams",
        f"refuses that read for {RETRY_TIMEOUT_SECONDS:.0f} s",
        f"During the next {RETRY_AFTER_REFUSAL_SECONDS:.0f} s",
        f"waits up to {stream.MAX_WAIT_TO_READ_ON_SECONDS:.0f} s for its turn",
    )
    assert [each for each in said if each not in ages] == []
