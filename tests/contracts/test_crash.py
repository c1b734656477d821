"""The data that survive when a process is killed."""

from collections import defaultdict

from nakadi.app.engines import open_event_log
from nakadi.ports.clock import SystemClock
from tests.support.everything import choose_by_suite
from tests.support.publish_until_killed import PARTITIONS, TOPIC
from tests.support.until_killed import lines_until_killed

KILLS = choose_by_suite(8, 22)


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path, record_property):
    """If its process is killed at random moments under load, the log keeps every acknowledged event, once, in order,
    and without gaps."""
    url = f"sqlite:///{tmp_path}/nakadi.db"
    acknowledged: dict[int, list[str]] = defaultdict(list)
    for run in range(KILLS):
        for line in lines_until_killed("publish_until_killed.py", url, run, between=(0.0, 0.25)):
            partition, *names = line.split()
            acknowledged[int(partition)] += names
    log = open_event_log(url, SystemClock())
    found = {partition: names_in(log, partition) for partition in range(PARTITIONS)}
    log.close()

    lost = sum(len(set(names) - set(found[partition])) for partition, names in acknowledged.items())
    total = sum(len(names) for names in acknowledged.values())
    record_property("figures", f"killed {KILLS} times: acknowledged {total} found {total - lost} lost {lost}")
    assert lost == 0
    assert total > KILLS
    for names in found.values():
        assert len(set(names)) == len(names)
        for publisher in {tuple(name.split(".")[:2]) for name in names}:
            mine = [tuple(map(int, name.split(".")[2:])) for name in names if tuple(name.split(".")[:2]) == publisher]
            assert mine == sorted(mine)
            # An append has up to three events, which are stored together, so the last one has the number that its
            # append implies.
            assert dict(mine) == {number: number % 3 for number, _ in mine}


def names_in(log, partition: int) -> list[str]:
    """The names of a partition's events in the order of their offsets; fail if the offsets have a gap."""
    names: list[str] = []
    end = log.bounds(TOPIC, [partition])[partition].next_offset
    while len(names) < end:
        found = log.read(TOPIC, partition, len(names))
        assert [event.offset for event in found.events] == list(range(len(names), found.next_offset))
        names += [event.record.value.decode().strip('"') for event in found.events]
    return names
