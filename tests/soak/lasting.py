"""Tests whether a broker's memory, files and threads stay bounded under hours of mixed load.

    python -m tests.soak.lasting MINUTES [--engine kafka|aws-local] [--jobs] [--output FOLDER]

The soak in `soak.py` kills processes every few seconds, to find lost events: no process lives long enough to show a
leak. Here the broker lives for ten minutes at a time, under everything that clients do (`mixed_load.py`), and the run
samples its memory, descriptors, threads and files every few seconds (`samples.py`). At the end, `growth.py` judges each
series, and `growth_plot.py` draws all of them.

Retention times are short, so that the archive stops growing before the run ends. A series that has not settled when
the run ends is drawn, and not judged.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from typing import Protocol

import psutil

from tests.soak.growth import Growth, Limit, measure_growths
from tests.soak.growth_plot import draw_samples
from tests.soak.mixed_load import RETENTION_MS, MixedLoad, fail_now_and_then
from tests.soak.samples import Folders, Sample, Stopwatch, recording, take_sample
from tests.soak.soak import Ground, Server
from tests.support.processes import ROOT_ENVIRONMENT
from tests.support.receiver import Receiver

MEGABYTE = 1_000_000

HOT_RETENTION_SECONDS = 120
ARCHIVE_AFTER_SECONDS = 10
ARCHIVE_GRACE_SECONDS = 600

# At 100 events a second, a merged object has the events of about ten minutes. It stays until the last of them has
# expired and the grace time is over. After that, the archive grows no more.
MERGED_OBJECT_SECONDS = 600
ARCHIVE_FULL_AFTER_SECONDS = RETENTION_MS / 1000 + MERGED_OBJECT_SECONDS + ARCHIVE_GRACE_SECONDS + 120

# With the events in Kafka, the data file has the ids of the events of the last hour, and the index of the archive.
DATA_FILE_WITHOUT_EVENTS_FULL_AFTER_SECONDS = 3600 + 180

MEMORY, DESCRIPTORS, THREADS, DATA_FILE = "memory", "descriptors", "threads", "data file"


def limit_on(series: str, *, share: float, amount: float, settles_after: float) -> Limit:
    """A limit on the field of the samples that has the name of the series."""
    value = attrgetter(series.replace(" ", "_").replace("-", "_"))
    return Limit(series=series, value=value, share=share, amount=amount, settles_after=settles_after)


def limit_of_a_process(
    series: str, *, share: float, amount: float, settles_in_life: float, settles_after: float = 0
) -> Limit:
    """A limit on the average of what each process holds within its life. The sum over all processes would say little,
    because Lambda adds processes when requests come at the same time.
    """
    of_all = attrgetter(series)
    return Limit(
        series=series,
        value=lambda sample: of_all(sample) / max(sample.processes, 1),
        share=share,
        amount=amount,
        settles_after=settles_after,
        settles_in_life=settles_in_life,
    )


LIMITS = (
    # Caches fill for minutes, such as the one of 500 schemas; then the garbage collector finds what they have dropped.
    # Work on the archive takes more memory until its first events expire, because there is more and more of it to
    # merge.
    limit_of_a_process(
        MEMORY, share=0.05, amount=5 * MEGABYTE, settles_in_life=480, settles_after=RETENTION_MS / 1000 + 180
    ),
    # Each thread has its own descriptors of the data file, and the last of the threads begins after minutes.
    limit_of_a_process(DESCRIPTORS, share=0.1, amount=5, settles_in_life=360),
    limit_of_a_process(THREADS, share=0.1, amount=3, settles_in_life=360),
    # The hot log is full after its retention time and two rounds of the worker that trims it.
    limit_on(DATA_FILE, share=0.1, amount=5 * MEGABYTE, settles_after=HOT_RETENTION_SECONDS + 180),
    limit_on("write-ahead log", share=0.1, amount=5 * MEGABYTE, settles_after=60),
    # A sawtooth of ten minutes: at its end, the broker removes merged objects, a third of the archive, together.
    limit_on("archive", share=0.3, amount=5 * MEGABYTE, settles_after=ARCHIVE_FULL_AFTER_SECONDS),
    limit_on("archive objects", share=0.3, amount=100, settles_after=ARCHIVE_FULL_AFTER_SECONDS),
    limit_on("temporary files", share=0, amount=5, settles_after=60),
    limit_on("other files", share=0.1, amount=MEGABYTE, settles_after=60),
)


LIMITS_WITH_EVENTS_ELSEWHERE = tuple(
    replace(each, settles_after=DATA_FILE_WITHOUT_EVENTS_FULL_AFTER_SECONDS) if each.series == DATA_FILE else each
    for each in LIMITS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seconds: float
    events_a_second: float = 100.0
    restart_seconds: float = 600.0
    sample_seconds: float = 5.0
    engine: str = "embedded"
    runs_jobs: bool = False
    seed: int = 0
    limits: Sequence[Limit] = LIMITS


@dataclass(slots=True)
class Run:
    """`idle` has the activities that never succeeded, or failed more often than they succeeded, each with its last
    failure.
    """

    samples: list[Sample] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    idle: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.idle and not any(each.is_excessive for each in self.growths)

    def __str__(self) -> str:
        return "\n".join(
            [
                *(str(each) for each in self.growths),
                *(f"{each:20} not judged: the run ended before it could settle" for each in self.unjudged),
                *(f"{name}: failed too often, at last with {why}" for name, why in self.idle.items()),
            ]
        )


RETENTION_SETTINGS = {
    "NAKADI_RETENTION_MIN_MS": "60000",
    "NAKADI_RETENTION_DEFAULT_MS": str(RETENTION_MS),
    "NAKADI_HOT_RETENTION_MS": str(HOT_RETENTION_SECONDS * 1000),
    "NAKADI_ARCHIVE_AFTER_SECONDS": str(ARCHIVE_AFTER_SECONDS),
    "NAKADI_ARCHIVE_GRACE_SECONDS": str(ARCHIVE_GRACE_SECONDS),
}


class LastingGround(Ground, Protocol):
    def find_processes(self) -> Iterable[psutil.Process]:
        """The processes of the broker that live now. Raise `psutil.NoSuchProcess` if the broker has ended."""


class LastingServer(Server):
    def __init__(self, folders: Folders, settings: Mapping[str, str]) -> None:
        self._settings = {**RETENTION_SETTINGS, "TMPDIR": str(folders.temporary), **settings}
        super().__init__(folders.data)

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **self._settings}

    def find_processes(self) -> Iterable[psutil.Process]:
        assert self._process is not None
        broker = psutil.Process(self._process.pid)
        return (broker, *broker.children(recursive=True))


def run_load(
    plan: Plan,
    folder: Path,
    say: Callable[[str], None] = print,
    record: Callable[[Sample], None] = lambda _: None,
) -> Run:
    folders = Folders(data=folder / "data", temporary=folder / "temporary")
    for each in (folders.data, folders.temporary):
        each.mkdir()
    with ExitStack() as around:
        server = _open_ground(plan.engine, folder, folders, around)
        around.callback(server.close)
        receiver = (
            around.enter_context(Receiver(fail_now_and_then(random.Random(plan.seed))))
            if server.delivers_to_sinks
            else None
        )
        load = MixedLoad(server.host, plan.events_a_second, receiver, plan.seed)
        around.enter_context(load.running())
        if plan.runs_jobs:
            around.enter_context(_following_job(folders))
        run = Run()
        for sample in _take_samples(plan, server, folders, load, say):
            record(sample)
            run.samples.append(sample)
    for limit in plan.limits:
        growths = measure_growths(run.samples, limit)
        run.growths += growths
        if not growths:
            run.unjudged.append(limit.series)
    for name in load.activities:
        say(f"{name}: {load.done[name]:,} times, failed {load.failed[name]:,} times {load.last_failures.get(name, '')}")
    say(f"the broker asked for time {load.refused:,} times")
    run.idle = {
        name: load.last_failures.get(name, "nothing")
        for name in load.activities
        if not load.done[name] or load.done[name] < load.failed[name]
    }
    return run


def _take_samples(
    plan: Plan, server: LastingGround, folders: Folders, load: MixedLoad, say: Callable[[str], None]
) -> Iterator[Sample]:
    """Take samples until the time is over, and restart the server now and then."""
    watch, life, restart_at = Stopwatch(), 0, plan.restart_seconds
    ends_of_life = cycle([signal.SIGTERM, signal.SIGKILL])
    while (now := watch.seconds()) < plan.seconds:
        if now >= restart_at:
            how = next(ends_of_life)
            server.stop(how)
            server.start()
            life, restart_at = life + 1, restart_at + plan.restart_seconds
            say(f"after {now:.0f} s the server was ended by {how.name}, and is back")
        with suppress(psutil.NoSuchProcess):
            yield take_sample(server.find_processes(), folders, seconds=watch.seconds(), life=life, events=load.events)
        time.sleep(max(0.0, now + plan.sample_seconds - watch.seconds()))


def _open_ground(engine: str, folder: Path, folders: Folders, around: ExitStack) -> LastingGround:
    if engine == "aws-local":
        from tests.soak.aws import LaptopGround  # noqa: PLC0415  # it needs the deployment's modules

        return LaptopGround(folders.data, RETENTION_SETTINGS)
    if engine == "kafka":
        from tests.support.kafka import OwnServer  # noqa: PLC0415  # only on request

        (folder / "kafka").mkdir()
        kafka = OwnServer(folder / "kafka")
        around.callback(kafka.end)
        kafka.wait()
        return LastingServer(folders, {"NAKADI_EVENT_LOG": f"kafka://{kafka.address}"})
    return LastingServer(folders, {})


@contextmanager
def _following_job(folders: Folders) -> Iterator[None]:
    command = [sys.executable, "-m", "nakadi_jobs.follow", "--data", str(folders.data), "--every-seconds", "60"]
    environment = {**ROOT_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (folders.data.parent / "follow.log").open("w") as log:
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield
            assert job.poll() is None, (folders.data.parent / "follow.log").read_text()
        finally:
            job.terminate()
            job.wait(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--engine", choices=["embedded", "kafka", "aws-local"], default="embedded")
    parser.add_argument("--jobs", action="store_true", help="keep tables up to date meanwhile, with Spark")
    parser.add_argument("--restart-minutes", type=float, default=10.0)
    parser.add_argument("--events-a-second", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, default=Path("lasting"), help="for samples.csv, samples.svg and the broker's logs"
    )
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        seconds=60 * options.minutes,
        events_a_second=options.events_a_second,
        restart_seconds=60 * options.restart_minutes,
        engine=options.engine,
        runs_jobs=options.jobs,
        seed=options.seed,
        limits=LIMITS if options.engine == "embedded" else LIMITS_WITH_EVENTS_ELSEWHERE,
    )
    with tempfile.TemporaryDirectory() as folder, recording(options.output / "samples.csv") as record:
        try:
            run = run_load(plan, Path(folder), record=record)
        finally:
            for log in Path(folder).glob("data/**/*.log"):
                shutil.copy(log, options.output)
    (options.output / "samples.svg").write_bytes(draw_samples(run.samples))
    print(run)
    return 0 if run.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
