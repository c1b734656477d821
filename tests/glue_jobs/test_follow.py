"""Tables that follow the archive, and their metrics."""

import json
import os
import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest

from nakadi.event_types.table_states import TABLE_STATES_KIND, table_state_from_body
from nakadi_jobs import follow
from nakadi_jobs.follow import Follower
from tests.support.jobs import order
from tests.support.patience import until


@pytest.fixture
def rounds(monkeypatch):
    """The names of the event types with news in each round."""
    found = []
    plain = Follower.round

    def count_round(self):
        updated = plain(self)
        found.append([each.name for each in updated])
        return updated

    monkeypatch.setattr(Follower, "round", count_round)
    return found


def test_news_are_in_the_table_once_and_rounds_without_news_do_nothing(data, jobs, rounds):
    """While a following job runs, each round adds newly archived events, for the event types that have them, until a
    signal. All rounds are one run. (T1)"""
    busy, quiet = data.event_type("busy"), data.event_type("quiet", partitions=2)
    off = data.event_type("off", annotations={"datalake.zalando.org/materialize-events": "off"})
    just_now = datetime.now(UTC) - timedelta(seconds=30)
    data.archive_events(busy, [order(number) for number in range(5)], at=just_now)
    data.archive_events(quiet, [order(1)], partition=1)
    data.archive_events(off, [order(1)])

    def live():
        try:
            until(lambda: len(rounds) >= 2 and not rounds[-1])
            data.archive_events(busy, [order(5), b'{"total":"no number"}'], at=just_now)
            until(lambda: rounds.count(["busy"]) == 1 and not rounds[-1])
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    living = threading.Thread(target=live)
    living.start()
    ran = jobs.run(follow.main, "--every-seconds", "0.05", "--no-tidying", "--report", str(data.folder))
    living.join()

    assert ran.code == 0, ran.told
    assert rounds[0] == ["busy", "quiet"]
    assert [each for each in rounds[1:] if each] == [["busy"]]
    assert jobs.rows("busy") == [(0, offset) for offset in range(7)]
    assert jobs.rows("quiet") == [(1, 0)]
    assert sorted(jobs.names()) == ["busy", "nakadi__runs", "quiet"]
    [run] = data.event_types.table_runs(busy).runs
    assert (run.job, run.row_count, run.misfit_count) == ("follow", 7, 1)
    known = table_state_from_body(data.registry.get(TABLE_STATES_KIND, busy.id).body)
    assert (known.table_name, known.row_count, known.misfit_count, known.unreadable_count) == ("busy", 7, 1, 0)
    assert known.next_offsets == {(busy.timeline.topic, 0): 7}
    assert 30 <= known.latency_seconds < 3600
    [report] = data.folder.glob("follow-*.json")
    told = json.loads(report.read_text())
    assert told["misfits"] == {"busy": 1}
    assert told["latency_seconds"]["quiet"] > 3600 > told["latency_seconds"]["busy"] >= 30


@pytest.mark.long
def test_what_fails_waits_for_its_turn_and_a_state_that_is_missing_is_written(data, jobs, rounds):
    """Damage is reported once and counted; a table whose state was lost gets it from its own properties."""
    event_type = data.event_type("harmed")
    data.archive_events(event_type, [order(1)])
    data.path(data.archive_events(event_type, [order(2), order(3)])).write_bytes(b"")

    ran = jobs.run(follow.main, "--until-idle", "--no-tidying")

    assert ran.code == 3
    assert rounds == [["harmed"], []]
    assert ran.told.count("offsets 1-2 are missing") == 2, "once when it is found, and once at the end"
    known = table_state_from_body(data.registry.get(TABLE_STATES_KIND, event_type.id).body)
    assert (known.row_count, known.misfit_count, known.unreadable_count) == (1, 0, 2)

    data.delete("harmed")
    again = data.event_type("harmed")
    data.archive_events(again, [order(number) for number in range(3)])
    jobs.compact()
    [state] = data.registry.list(TABLE_STATES_KIND)
    assert state.key == again.id
    assert table_state_from_body(state.body).table_name == f"harmed_{again.id.replace('-', '')[:8]}"
