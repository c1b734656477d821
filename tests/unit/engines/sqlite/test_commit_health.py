"""What operators learn about commits that are slow, or that succeed again after failures."""

import logging
from contextlib import closing
from datetime import datetime

import pytest

from nakadi.common.metrics import Metrics
from nakadi.engines.sqlite.commit_health import CommitHealth
from nakadi.engines.sqlite.event_log import SqliteLog
from tests.support.clock import HandMovedClock
from tests.support.engines import a_record, append_and_wait
from tests.support.metrics import collect_samples, sample_value


def test_slow_commits_are_logged(tmp_path, caplog):
    """A commit that takes longer than a second is logged, at most once a minute; its publisher learns nothing of it."""

    class SlowClock(HandMovedClock):
        """A clock with which each commit takes two seconds, because a commit reads the time of day once."""

        def now(self) -> datetime:
            self.move(2.0)
            return super().now()

    slow = SlowClock()
    with closing(SqliteLog(tmp_path / "nakadi.db", slow)) as log:
        log.create_topic("t", 1)
        append_and_wait(log, "t", {0: [a_record("1")]})
        append_and_wait(log, "t", {0: [a_record("2")]})
        assert caplog.text.count("A commit to the event log took 2.0 s") == 1
        slow.move(60.0)
        append_and_wait(log, "t", {0: [a_record("3")]})
        assert caplog.text.count("A commit to the event log took 2.0 s") == 2


def commit(clock, health, seconds, *, succeeds=True):
    began = clock.monotonic()
    clock.move(seconds)
    (health.note_success if succeeds else health.note_failure)(began)


def test_the_log_says_once_that_storing_works_again(caplog):
    """After failed commits, the first one that succeeds is logged with the time that has passed since the first
    failure, and the metrics have its time.
    """
    caplog.set_level(logging.INFO)
    clock, metrics = HandMovedClock(), Metrics()
    health = CommitHealth(clock, metrics)
    commit(clock, health, 0)
    assert sample_value(collect_samples(metrics), "nakadi_sqlite_commits_recovered_timestamp_seconds") == 0
    for _ in range(3):
        commit(clock, health, 0, succeeds=False)
        clock.move(30)
    commit(clock, health, 0)
    recovered_at = clock.now().timestamp()
    clock.move(30)
    commit(clock, health, 0)

    assert caplog.messages == ["Storing events works again, after 90 s"]
    samples = collect_samples(metrics)
    assert sample_value(samples, "nakadi_sqlite_commits_recovered_timestamp_seconds") == recovered_at
    assert sample_value(samples, "nakadi_sqlite_commit_failures_total") == 3


def test_the_average_is_that_of_the_last_minute():
    """A commit counts for a minute in the average duration of commits."""
    clock, metrics = HandMovedClock(), Metrics()
    health = CommitHealth(clock, metrics)
    commit(clock, health, 3)
    clock.move(50)
    commit(clock, health, 2)
    assert sample_value(collect_samples(metrics), "nakadi_sqlite_recent_commit_seconds") == pytest.approx(2.5)
    clock.move(20)
    assert sample_value(collect_samples(metrics), "nakadi_sqlite_recent_commit_seconds") == pytest.approx(2)
    clock.move(60)
    assert sample_value(collect_samples(metrics), "nakadi_sqlite_recent_commit_seconds") == 0
