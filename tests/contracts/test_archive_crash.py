"""The data that survive in both halves of a log when its process is killed."""

from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from math import inf
from pathlib import Path

from nakadi.app.engines import open_event_log, open_log_index
from nakadi.engines.archive import object_keys
from nakadi.engines.archive.policy import ArchivePolicy
from nakadi.engines.archive.segment_cache import read_segment
from nakadi.engines.archive.segments import archived_segments_from
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.archive.tiered_log import TieredLog
from nakadi.ports.clock import SystemClock
from tests.support.archive_until_killed import PARTITIONS, TOPIC, log_url, open_log
from tests.support.everything import choose_by_suite
from tests.support.until_killed import lines_until_condition, lines_until_killed

KILLS = choose_by_suite(4, 8)
SCRIPT = "archive_until_killed.py"


def test_nothing_is_lost_between_the_halves_when_the_process_is_killed(tmp_path, record_property):
    """If its process is killed at random moments while events move to the archive, the log keeps every acknowledged
    event, once, in order, and without gaps; objects that the index does not know are removed."""
    acknowledged: dict[int, list[str]] = defaultdict(list)
    lines = [line for run in range(KILLS) for line in lines_until_killed(SCRIPT, tmp_path, run, between=(0.05, 0.5))]
    # A process archives all waiting events as one object. On a busy machine, each process may be killed before it has
    # archived them, and leave even more to the next process. So one more process runs until it has archived some.
    lines += lines_until_condition(SCRIPT, tmp_path, KILLS, condition=lambda: count_archived_only(tmp_path))
    for line in lines:
        partition, *names = line.split()
        acknowledged[int(partition)] += names
    cold = count_archived_only(tmp_path)
    log = open_log(tmp_path, ArchivePolicy(archive_after=inf, hot_retention=0, unreferenced_grace=0))
    try:
        found = {partition: names_in(log, partition) for partition in range(PARTITIONS)}
        lost = sum(len(set(names) - set(found[partition])) for partition, names in acknowledged.items())
        total = sum(len(names) for names in acknowledged.values())
        record_property(
            "figures", f"killed {KILLS + 1} times: acknowledged {total}, in the archive alone {cold}, lost {lost}"
        )
        assert lost == 0
        assert total > KILLS
        assert cold > 0
        for names in found.values():
            assert len(set(names)) == len(names)
        see_that_the_archive_is_in_order(log, tmp_path)
    finally:
        log.close()


def count_archived_only(folder) -> int:
    """The number of events that the hot half has removed."""
    with closing(open_event_log(log_url(folder), SystemClock())) as hot:
        return sum(each.oldest for each in hot.bounds(TOPIC, range(PARTITIONS)).values())


def see_that_the_archive_is_in_order(log: TieredLog, folder: Path) -> None:
    with closing(open_log_index(log_url(folder))) as index, closing(open_archive(f"{folder}/archive")) as store:
        for partition in range(PARTITIONS):
            segments = list(archived_segments_from(index, TOPIC, partition))
            assert all(one.end_offset == following.first_offset for one, following in pairwise(segments))
            for segment in segments:
                read_segment(store, TOPIC, partition, segment)
        log.sweep()
        kept = {
            each.key
            for part in (object_keys.LOG_FOLDER, object_keys.REWRITTEN_FOLDER)
            for each in store.list_objects(part)
        }
        assert kept == set(index.referenced_archive_keys())


def names_in(log, partition: int) -> list[str]:
    """The names of a partition's events in the order of their offsets; fail if the offsets have a gap."""
    names: list[str] = []
    bounds = log.bounds(TOPIC, [partition])[partition]
    assert bounds.oldest == 0
    while len(names) < bounds.next_offset:
        found = log.read(TOPIC, partition, len(names))
        assert [event.offset for event in found.events] == list(range(len(names), found.next_offset))
        names += [event.record.value.decode().strip('"') for event in found.events]
    return names
