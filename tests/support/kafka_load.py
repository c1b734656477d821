"""Appends events to a Kafka and reads them during a failure, and records what became of each."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

from nakadi.app.engines import open_event_log
from nakadi.common.waiting import run_blocking
from nakadi.model.events import AppendRefused
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic
from tests.support.engines import a_record, record_text
from tests.support.patience import PATIENCE, until

WRITERS = 4
SOME = 100


@contextmanager
def open_log(servers, timeout=2, prefix=""):
    addresses = ",".join(server.address for server in servers)
    options = f"timeout={timeout}&replication={min(len(list(servers)), 3)}&prefix={prefix}"
    with closing(open_event_log(f"kafka://{addresses}?{options}", SystemClock())) as log:
        yield log


class NumberedLoad:
    """Writers that append numbered events one by one, without repeating any, and readers that follow them.

    `record` is pytest's `record_property`: the summary of the run shows what became of the events.
    """

    def __init__(self, log, record, partitions=1):
        self.log, self.partitions, self._record = log, partitions, record
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self.failed_reads = 0
        self.read: dict[int, list[str]] = {number: [] for number in range(partitions)}
        self._writing, self._reading = threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(WRITERS + partitions)

    def __enter__(self):
        self._writers = [self._threads.submit(self._write, number) for number in range(WRITERS)]
        self._readers = [self._threads.submit(self._follow, number) for number in range(self.partitions)]
        self.goes_on()
        return self

    def __exit__(self, *_):
        self._writing.set()
        self._reading.set()
        self._threads.shutdown()

    def _write(self, writer):
        number, partition = 0, writer % self.partitions
        while not self._writing.is_set():
            name, number = f"{writer}/{number}", number + 1
            try:
                fate = run_blocking(self.log.append("t", {partition: [a_record(name)]}))[partition]
            except Unavailable:
                fate = AppendRefused("unavailable")
            (self.refused if isinstance(fate, AppendRefused) else self.acknowledged).append(name)

    def _follow(self, partition):
        place = 0
        while not self._reading.is_set():
            try:
                piece = self.log.read("t", partition, place, wait=0.5)
            except Unavailable:
                self.failed_reads += 1
                continue
            assert [event.offset for event in piece.events] == list(range(place, piece.next_offset))
            self.read[partition] += [record_text(event.record) for event in piece.events]
            place = piece.next_offset

    def goes_on(self):
        """Wait until every writer has got further acknowledgements, and the readers have read more events."""
        stored, seen = len(self.acknowledged), self._count_read()
        until(
            lambda: (
                self._has_ended()
                or (_writers_of(self.acknowledged[stored:]) == WRITERS and len(self.acknowledged) > stored + SOME)
            )
        )
        until(lambda: self._has_ended() or self._count_read() > seen + SOME)

    def is_refused(self):
        """Wait until the log has refused an event of every writer."""
        before = len(self.refused)
        until(lambda: self._has_ended() or _writers_of(self.refused[before:]) == WRITERS)

    def figures(self):
        """Stop the writers, let the readers reach the end, and compare the events read with the acknowledged ones."""
        self._writing.set()
        for each in self._writers:
            each.result(PATIENCE)
        self._writers.clear()
        ends = retry_until_available(lambda: self.log.bounds("t", list(self.read)))
        until(lambda: self._has_ended() or all(len(self.read[n]) >= ends[n].next_offset for n in self.read))
        self._reading.set()
        for each in self._readers:
            each.result(PATIENCE)
        found = Counter(name for names in self.read.values() for name in names)
        figures = {
            "acknowledged": len(self.acknowledged),
            "lost": len(set(self.acknowledged) - found.keys()),
            "doubled": sum(found.values()) - len(found),
            "refused": len(self.refused),
            "refused but stored": len(set(self.refused) & found.keys()),
        }
        self._record("figures", ", ".join(f"{name} {number}" for name, number in figures.items()))
        assert (figures["lost"], figures["doubled"]) == (0, 0), figures
        for writer in range(WRITERS):
            of_writer = [name.split("/") for name in self.read[writer % self.partitions]]
            numbers = [int(number) for each, number in of_writer if each == f"{writer}"]
            assert numbers == sorted(numbers)
        return figures

    def _has_ended(self):
        """Raise the error of a writer or reader that has ended: none may end by itself."""
        return any(each.result() for each in (*self._writers, *self._readers) if each.done())

    def _count_read(self):
        return sum(map(len, self.read.values()))


def _writers_of(names):
    return len({name.partition("/")[0] for name in names})


def retry_until_available(ask):
    """Repeat the call until it does not raise `Unavailable`, and return its result."""
    found = []

    def ask_unless_unavailable():
        with suppress(Unavailable):
            found.append(ask())
        return found

    until(ask_unless_unavailable)
    return found[0]


def value_or_error(ask):
    try:
        return ask()
    except (UnknownTopic, Unavailable, OffsetUnavailable) as error:
        return type(error)
