"""What `nakadi doctor` concludes from the metrics of a broker."""

from datetime import UTC, datetime

import pytest

from nakadi_cli.doctor import check_archive, check_machine, check_processes, check_subscriptions
from nakadi_cli.failures import NotFound, NotPermitted

ROOM = """\
# HELP nakadi_disk_free_bytes Room.
nakadi_disk_free_bytes{place="data"} 50000000000.0
nakadi_disk_size_bytes{place="data"} 100000000000.0
nakadi_sqlite_commit_failures_total 0.0
"""

NOW = 2_000_000_000.0


def failed_attempts(minutes_ago):
    """The metrics of a broker whose attempts to archive failed, the last time this many minutes ago."""
    last_fault = 'nakadi_last_fault_timestamp_seconds{metric="nakadi_archive_failures_total"}'
    return ROOM + f'nakadi_archive_failures_total{{operation="cut"}} 28.0\n{last_fault} {NOW - 60 * minutes_ago}\n'


def failed_commits(minutes_ago):
    """The metrics of a broker that could not store events, the last time this many minutes ago."""
    last_fault = 'nakadi_last_fault_timestamp_seconds{metric="nakadi_sqlite_commit_failures_total"}'
    return ROOM.replace("failures_total 0.0", f"failures_total 3.0\n{last_fault} {NOW - 60 * minutes_ago}")


def recovered_commits(minutes_ago):
    """The metrics of `failed_commits`, for a broker whose commits have succeeded again since a minute after the
    failure.
    """
    recovered_at = NOW - 60 * (minutes_ago - 1)
    return f"{failed_commits(minutes_ago)}nakadi_sqlite_commits_recovered_timestamp_seconds {recovered_at}\n"


class ScriptedBroker:
    """A broker with these metrics, or with none."""

    def __init__(self, metrics=None):
        self._metrics = metrics

    def metrics(self):
        if self._metrics is None:
            raise NotFound("no")
        return self._metrics


@pytest.mark.parametrize(
    ("metrics", "state", "why"),
    [
        (ROOM, "well", "disks have room"),
        (ROOM.replace("50000000000.0", "0.0"), "ill", "the disk of data has 0 MB left"),
        (ROOM.replace("failures_total 0.0", "failures_total 3.0"), "notice", "3 commits to the event log failed since"),
        (failed_commits(2), "ill", "see NakadiCannotStoreEvents"),
        (failed_commits(6), "notice", "the last one 6 minutes ago"),
        (ROOM.replace("failures_total 0.0", "failures_total 1.0"), "notice", "1 commit to the event log failed since"),
        (ROOM + "nakadi_worker_restarts_total 1.0\n", "notice", "1 restart of workers since"),
        (ROOM + "nakadi_worker_restarts_total 2.0\n", "notice", "2 restarts of workers since"),
        (failed_attempts(2), "notice", "28 attempts to archive failed since the start, the last one 2 minutes ago"),
        (failed_attempts(40), "well", "28 attempts to archive failed since the start, the last one 40 minutes ago"),
        (failed_attempts(40).replace("failures_total 0", "failures_total 3"), "notice", "3 commits"),
        (ROOM + 'nakadi_archive_failures_total{operation="cut"} 28.0\n', "notice", "28 attempts to archive failed"),
        (None, "well", "shows no metrics"),
        (recovered_commits(2), "notice", "the last one 2 minutes ago; commits have succeeded since 03:32:20 UTC"),
        (ROOM + "nakadi_sqlite_recent_commit_seconds 2.34\n", "notice", "took 2.3 s on average in the last minute"),
        (ROOM + "nakadi_sqlite_recent_commit_seconds 0.4\n", "well", "nothing has failed"),
        (failed_attempts(2), "notice", "see NakadiIndexerIsBehind"),
        (ROOM + "nakadi_worker_restarts_total 1.0\n", "notice", "see NakadiWorkersDie"),
    ],
    ids=[
        "room",
        "full disk",
        "failed commits",
        "one failed commit",
        "one restart",
        "restarts",
        "commits fail",
        "commits failed lately",
        "failed now",
        "failed before",
        "another",
        "archive fails",
        "no metrics",
        "commits succeed again",
        "slow commits",
        "quick commits",
        "section on archiving",
        "section on workers",
    ],
)
def test_the_machine_is_checked_by_its_metrics(metrics, state, why):
    """`doctor` reports a full disk as ill, and a broker whose commits failed lately. If the broker says when other
    faults last happened, `doctor` reports them until they have not happened for a while.
    """
    found = check_machine(ScriptedBroker(metrics), lambda: NOW)

    assert found.state == state
    assert why in found.why


def test_a_damaged_archive_is_ill():
    """The finding names the event type, partition, offsets and object of the damage, and the command that repairs
    it.
    """
    damage = (
        'nakadi_archive_damaged_offsets{event_type="order.placed",partition="2",offsets="400-1399",object="log/a/b.gz"}'
    )

    found = check_archive(ScriptedBroker(f"{ROOM}{damage} 1000.0\n"))

    assert found.state == "ill"
    for each in ("400-1399", "partition 2 of order.placed", "log/a/b.gz", "nakadi restore"):
        assert each in found.why


def test_each_damaged_object_has_one_line():
    """Below the command for the repair, a line for each damaged object names its offsets in all partitions."""
    damage = "".join(
        f'nakadi_archive_damaged_offsets{{event_type="order.placed",partition="{partition}",offsets="0-9",'
        f'object="{name}"}} 10.0\n'
        for name in ("log/a.gz", "log/b.gz")
        for partition in range(3)
    )

    first, *others = check_archive(ScriptedBroker(ROOM + damage)).why.split("\n")

    assert first.startswith("2 objects. Streams wait there. Repair:")
    assert [each.split()[0] for each in others] == ["log/a.gz", "log/b.gz"]
    assert all(each.count("offsets 0-9") == 3 for each in others)


@pytest.mark.parametrize(("minutes_ago", "state"), [(2, "ill"), (6, "well")])
def test_an_archive_that_reads_do_not_reach_is_ill(minutes_ago, state):
    """If reads do not reach the archive, the finding says what to check, and does not suggest a backup. Some time after
    the last failed read, `doctor` finds nothing wrong with the archive.
    """
    name = "nakadi_archive_read_failures_total"
    last_fault = f'nakadi_last_fault_timestamp_seconds{{metric="{name}"}} {NOW - 60 * minutes_ago}\n'

    found = check_archive(ScriptedBroker(f"{ROOM}{name} 7.0\n{last_fault}"), lambda: NOW)

    assert found.state == state
    assert ("file system" in found.why) == (state == "ill")
    assert ("see NakadiArchiveCannotBeRead" in found.why) == (state == "ill")
    assert "nakadi restore" not in found.why


def test_an_archive_without_damage_is_well():
    """Repaired damage is no longer reported."""
    assert check_archive(ScriptedBroker(f"{ROOM}nakadi_archive_unreadable_total 75.0\n")).state == "well"


def test_the_processes_of_the_broker_are_named():
    """`doctor` lists the ids of all processes that serve the broker, the smallest first."""
    metrics = 'nakadi_process_info{process="1201"} 1.0\nnakadi_process_info{process="97"} 1.0\n'

    assert check_processes(ScriptedBroker(metrics)).why == "its process ids are 97, 1201"


TWO_OF_THREE = (
    'nakadi_processes_expected 3.0\nnakadi_process_info{process="97"} 1\nnakadi_process_info{process="120"} 1\n'
)


@pytest.mark.parametrize(
    ("metrics", "state", "why"),
    [
        (TWO_OF_THREE + 'nakadi_process_info{process="121"} 1\n', "well", "its process ids are 97, 120, 121"),
        (TWO_OF_THREE, "notice", "2 of 3 processes answer (its process ids are 97, 120); a worker has not started yet"),
        (
            TWO_OF_THREE + 'nakadi_process_info{process="121"} 1\nnakadi_process_silent_seconds{process="121"} 14.2\n',
            "ill",
            "2 of 3 processes answer (its process ids are 97, 120); process 121 has not answered for 14 s",
        ),
        (
            TWO_OF_THREE + 'nakadi_process_silent_seconds{process="121"} 14.2\n',
            "ill",
            "2 of 3 processes answer (its process ids are 97, 120); process 121 has not answered for 14 s",
        ),
    ],
    ids=["all answer", "one starts", "one is silent", "one was silent from its beginning"],
)
def test_processes_that_do_not_answer_are_named(metrics, state, why):
    """The finding says how many of the processes answer, and which one is silent."""
    found = check_processes(ScriptedBroker(metrics))

    assert found.state == state
    assert found.why.startswith(why)


class BrokerWithSubscription:
    """A broker with one subscription, whose only partition has this status."""

    def __init__(self, **partition):
        self._partition = partition

    def items(self, _):
        return [{"id": "s1"}]

    def get(self, _, **parameters):
        hidden = () if parameters.get("show_time_lag") else ("consumer_lag_seconds",)
        return {"items": [{"partitions": [{k: v for k, v in self._partition.items() if k not in hidden}]}]}


@pytest.mark.parametrize(
    ("partition", "state"),
    [
        ({"unconsumed_events": 3, "stream_id": "", "consumer_lag_seconds": 61}, "notice"),
        ({"unconsumed_events": 3, "stream_id": "", "consumer_lag_seconds": 59}, "well"),
        ({"unconsumed_events": 3, "stream_id": ""}, "well"),
        ({"unconsumed_events": 3, "stream_id": "x", "consumer_lag_seconds": 61}, "well"),
        ({"unconsumed_events": 0, "stream_id": "", "consumer_lag_seconds": 61}, "well"),
    ],
    ids=["waits for long", "waits for a moment", "waits for an unknown time", "is read", "has no events"],
)
def test_a_subscription_that_nobody_reads_is_noticed(partition, state):
    """A subscription whose events have waited for a minute without a reader is named."""
    found = check_subscriptions(BrokerWithSubscription(**partition))

    assert found.state == state
    assert ("no reader: s1" in found.why) == (state == "notice")


CREATED_AT = datetime.fromtimestamp(NOW, UTC).isoformat()


class BrokerWithNewSubscription:
    """A broker with a subscription that never had a stream. `lag` is the number of events after its start."""

    def __init__(self, lag=3, **fields):
        self._subscription = {"id": "s1", "created_at": CREATED_AT, "initial_cursors": [], **fields}
        self._lag = lag
        self.asked = []

    def items(self, _):
        return [self._subscription]

    def get(self, *_, **__):
        return {"items": [{"event_type": "e", "partitions": [{"partition": "0", "stream_id": ""}]}]}

    def post(self, where, cursors):
        self.asked.append((where, cursors))
        if self._lag is None:
            raise NotPermitted("no")
        return [{"unconsumed_events": self._lag} for _ in cursors]


@pytest.mark.parametrize(
    ("fields", "hours", "start"),
    [
        ({"read_from": "begin"}, 2, "BEGIN"),
        ({"read_from": "end"}, 2, CREATED_AT),
        (
            {
                "read_from": "cursors",
                "initial_cursors": [{"event_type": "e", "partition": "0", "offset": "001-0001-7"}],
            },
            2,
            "001-0001-7",
        ),
        ({"read_from": "begin", "lag": 0}, 2, None),
        ({"read_from": "begin", "lag": None}, 2, None),
        ({"read_from": "begin"}, 0.9, None),
    ],
    ids=["from the beginning", "from the end", "from cursors", "without events", "may not be seen", "new"],
)
def test_a_subscription_that_was_never_read_is_noticed(fields, hours, start):
    """A subscription that has events and never had a stream is named an hour after its creation."""
    broker = BrokerWithNewSubscription(**fields)

    found = check_subscriptions(broker, lambda: NOW + 3600 * hours)

    assert found.state == ("well" if start is None else "notice")
    if start is not None:
        assert found.why == "checked 1; with events, and never read since their creation an hour ago or longer: s1"
        assert broker.asked == [("/event-types/e/cursors-lag", [{"partition": "0", "offset": start}])]
