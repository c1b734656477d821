"""The log indexer for logs that number events themselves: a schedule invokes it, and it archives new events."""

import json
import os
from contextlib import closing
from datetime import timedelta

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.log_indexer import ArchivingFailed, TopicArchiver
from nakadi.app.settings import Settings
from nakadi.common.waiting import run_blocking
from nakadi.model.event_type import DEFAULT_STORAGE_ID
from nakadi.model.events import OffsetBounds, Record
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.clock import SystemClock
from nakadi_cdk.needs import TELEMETRY_SETTINGS, TOPIC_ARCHIVER
from tests.support.builders import a_timeline, an_event_type
from tests.support.read_settings import ReadRecordingSettings

ALL = {"part": 0, "parts": 1}


@pytest.fixture
def broker(broker, environment, tmp_path):  # noqa: ARG001  # its tables exist
    """A process that publishes, and leaves archiving to the function. The hot log keeps nothing that is archived."""
    for name, value in {
        "NAKADI_ARCHIVE": f"{tmp_path}/archive",
        "NAKADI_LOG_INDEX": "dynamodb://live",
        "NAKADI_ARCHIVER": "function",
        "NAKADI_HOT_RETENTION_MS": "0",
    }.items():
        environment.setenv(name, value)
    with closing(open_broker(settings())) as opened:
        yield opened


def settings():
    return Settings.from_env(os.environ)


def publish(broker, name, count, **timeline):
    event_type = an_event_type(name=name, timelines=(a_timeline(topic=f"topic-of-{name}", **timeline),))
    log = broker.logs.for_storage(DEFAULT_STORAGE_ID)
    log.create_topic(f"topic-of-{name}", event_type.timeline.partitions)
    broker.event_types.add(event_type)
    for number in range(count):
        run_blocking(log.append(f"topic-of-{name}", {0: [Record(b"%d" % number)]}))


def read(broker, name):
    found = broker.logs.for_storage(DEFAULT_STORAGE_ID).read(f"topic-of-{name}", 0, 0)
    return [event.record.value for event in found.events]


def hot_bounds(broker, name):
    return broker.logs.for_storage(DEFAULT_STORAGE_ID)._hot.bounds(f"topic-of-{name}", [0])[0]


def metrics(capsys):
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if "_aws" in line]


def test_events_are_read_from_the_archive_once_the_log_has_removed_them(functions, broker, capsys):
    """A run archives all events, and the log keeps only the newest one; readers see no difference."""
    publish(broker, "a", 5)
    publish(broker, "b", 3)
    capsys.readouterr()

    assert functions.invoke("log_indexer", ALL) is None

    assert (hot_bounds(broker, "a"), hot_bounds(broker, "b")) == (OffsetBounds(4, 5), OffsetBounds(2, 3))
    assert read(broker, "a") == [b"0", b"1", b"2", b"3", b"4"]
    [told] = metrics(capsys)
    assert told["EventsIndexed"] == [8.0]
    assert told["BytesIndexed"][0] > 0


def test_a_second_run_finds_nothing_left(functions, broker, capsys):
    """Archived events are not archived again."""
    publish(broker, "a", 5)
    functions.invoke("log_indexer", ALL)
    capsys.readouterr()
    functions.invoke("log_indexer", ALL)

    [told] = metrics(capsys)
    assert (told["EventsIndexed"], told["IndexLag"]) == ([0.0], [0.0])


def test_processes_that_publish_do_not_archive(broker):
    """If the function archives, the log of a publishing process removes nothing, and does not archive."""
    publish(broker, "a", 5)
    broker.logs.for_storage(DEFAULT_STORAGE_ID).archive()

    assert hot_bounds(broker, "a") == OffsetBounds(0, 5)


def test_topics_that_another_broker_uses_keep_their_events(functions, broker):
    """An adopted topic is archived, and no event is removed from it."""
    publish(broker, "a", 5, adopted=True)
    functions.invoke("log_indexer", ALL)

    assert hot_bounds(broker, "a") == OffsetBounds(0, 5)
    assert (
        broker.logs.for_storage(DEFAULT_STORAGE_ID)
        ._index.index_heads([("topic-of-a", 0)])["topic-of-a", 0]
        .state.next_offset
        == 5
    )


def test_each_part_has_its_topics(functions, broker):
    """Each of several parts, which may run at the same time, archives its own topics, and together they archive all."""
    names = [f"n{number}" for number in range(6)]
    for name in names:
        publish(broker, name, 2)
    functions.invoke("log_indexer", {"part": 0, "parts": 2})
    first = {name for name in names if hot_bounds(broker, name).oldest}
    functions.invoke("log_indexer", {"part": 1, "parts": 2})

    assert first
    assert first != set(names)
    assert all(hot_bounds(broker, name).oldest for name in names)


def test_a_topic_that_cannot_be_archived_keeps_no_other_waiting(broker, capsys, monkeypatch):
    """If one topic cannot be archived, the other topics are archived, but the run fails, and does not report the lag of
    the archive.
    """
    publish(broker, "a", 2)
    publish(broker, "b", 2)
    with closing(TopicArchiver(settings())) as archiver:
        log = archiver._broker.logs.for_storage(DEFAULT_STORAGE_ID)
        archive_topic = log.archive_topic

        def fail_one_topic(topic, partitions):
            if topic == "topic-of-a":
                raise Unavailable("on purpose")
            archive_topic(topic, partitions)

        monkeypatch.setattr(log, "archive_topic", fail_one_topic)
        capsys.readouterr()
        with pytest.raises(ArchivingFailed, match="1 topics could not be archived, such as the one of a"):
            archiver.archive_part(0, 1)

    assert (hot_bounds(broker, "a").oldest, hot_bounds(broker, "b").oldest) == (0, 1)
    [told] = metrics(capsys)
    assert "IndexLag" not in told


def test_the_function_gets_exactly_the_settings_that_it_reads(broker, environment):
    """The deployment gives the function every setting that it reads here, and none that it does not."""
    environment.delenv("NAKADI_AUTH")
    publish(broker, "a", 2)
    watched = ReadRecordingSettings(settings())
    with closing(TopicArchiver(watched)) as archiver:
        archiver.archive_part(0, 1)

    assert watched.read - TELEMETRY_SETTINGS == TOPIC_ARCHIVER.settings


def test_the_archiver_reports_how_long_the_oldest_event_has_waited(broker, capsys):
    """The delay is the age of the oldest event that was not archived when the run began."""

    class ClockInAnHour(SystemClock):
        def now(self):
            return super().now() + timedelta(hours=1)

    publish(broker, "a", 2)
    capsys.readouterr()
    with closing(TopicArchiver(settings(), ClockInAnHour())) as archiver:
        archiver.archive_part(0, 1)

    [told] = metrics(capsys)
    assert 3600 <= told["IndexLag"][0] < 3600 + 600


def test_an_archiver_that_is_not_known_is_refused(broker, environment):  # noqa: ARG001  # it sets an archive
    """An unknown value of NAKADI_ARCHIVER is refused, and the message lists the known ones."""
    environment.setenv("NAKADI_ARCHIVER", "elsewhere")

    with pytest.raises(BadSetting, match="broker, function"):
        open_broker(settings())
