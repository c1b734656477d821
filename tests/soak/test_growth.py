"""Which growth the judgement of a lasting run reports, and which changes it ignores on purpose."""

from __future__ import annotations

import random
from dataclasses import replace
from xml.etree import ElementTree as ET

import psutil
import pytest

from tests.soak.growth import Growth, Limit, measure_growths
from tests.soak.growth_plot import draw_samples
from tests.soak.samples import Folders, Sample, read_samples, recording, take_sample

LIMIT = Limit(series="memory", value=lambda sample: sample.memory, share=0.05, amount=0, settles_after=60)
MB = 1_000_000


def measure_within(samples, limit) -> Growth:
    """The growth within the run, or within its lives."""
    return measure_growths(samples, limit)[0]


def a_sample(seconds: float, memory: int, life: int = 0) -> Sample:
    return Sample(
        seconds=seconds,
        life=life,
        events=int(seconds),
        processes=1,
        memory=memory,
        descriptors=40,
        threads=20,
        cpu_seconds=seconds / 10,
        data_file=0,
        write_ahead_log=0,
        archive=0,
        archive_objects=0,
        tables=0,
        temporary_files=0,
        log=0,
        other_files=0,
    )


def an_hour(memory_at) -> list[Sample]:
    return [a_sample(seconds, int(memory_at(seconds))) for seconds in range(0, 3600, 5)]


def test_a_slow_leak_is_found():
    """Memory that grows by a tenth in an hour is found, although the noise is larger than that at any moment."""
    chance = random.Random(0)
    growth = measure_within(an_hour(lambda at: 100 * MB + at * 3_000 + chance.uniform(-15, 15) * MB), LIMIT)
    assert growth.gained == pytest.approx(0.1 * 100 * MB, rel=0.3)
    assert growth.is_excessive


@pytest.mark.parametrize(
    "memory_at",
    [
        lambda _: 100 * MB,
        lambda at: 100 * MB + at % 300 * 0.05 * MB,  # a sawtooth
        lambda at: (300 if at % 60 < 15 else 100) * MB,  # a quarter of the samples is far off
        lambda at: min(at, 60) * MB,  # a start
    ],
    ids=["even", "sawtooth", "peaks", "warm-up"],
)
def test_what_stays_the_same_is_no_growth(memory_at):
    """Sawteeth, peaks and the time before a series settles count for nothing."""
    assert not measure_within(an_hour(memory_at), LIMIT).is_excessive


def test_a_process_is_judged_within_its_lives_and_from_life_to_life():
    """A later life may not hold more than an earlier one, and no life may grow. The fall at a restart does not hide
    growth.
    """
    limit = replace(LIMIT, settles_in_life=60)
    higher = [a_sample(at, (100 + 50 * (at // 600)) * MB, life=at // 600) for at in range(0, 3600, 5)]
    growing = [a_sample(at, int((100 + at % 600 * 0.05) * MB), life=at // 600) for at in range(0, 3600, 5)]
    assert [each.is_excessive for each in measure_growths(higher, limit)] == [False, True]
    assert [each.is_excessive for each in measure_growths(growing, limit)] == [True, False]
    assert [each.is_excessive for each in measure_growths(higher, LIMIT)] == [True]


def test_a_life_that_settles_shortly_before_its_end_is_judged_by_life_alone():
    """A life that settles shortly before its end is judged only from life to life, because within two minutes, a
    sawtooth of one minute would look like growth.
    """
    limit = replace(LIMIT, settles_in_life=480)
    sawtooth = [a_sample(at, int((100 + at % 60) * MB), life=at // 600) for at in range(0, 3600, 5)]
    assert [each.series for each in measure_growths(sawtooth, limit)] == ["memory by life"]
    assert not measure_growths(sawtooth, limit)[0].is_excessive


def test_a_life_is_judged_from_when_both_the_run_and_the_life_have_settled():
    """What fills in the first quarter of an hour of the run does not count, although new lives begin meanwhile."""
    limit = replace(LIMIT, settles_after=900, settles_in_life=120)
    filling = [a_sample(at, min(at, 900) * MB, life=at // 600) for at in range(0, 1800, 5)]
    [within, by_life] = measure_growths(filling, limit)
    assert (within.gained, within.judged_seconds) == (0, 600 - 120 - 5)
    assert by_life.gained == 0
    assert all(each.is_excessive for each in measure_growths(filling[:200], replace(limit, settles_after=0)))


def test_what_has_not_settled_is_not_judged():
    """A run that ends before a series has settled yields no growth."""
    assert not measure_growths([a_sample(at, at * MB) for at in range(0, 70, 5)], LIMIT)


def test_samples_are_taken_written_read_and_drawn(tmp_path):
    """A sample sorts the broker's files by purpose, and the plot has a chart for each series that changes."""
    folders = Folders(data=tmp_path / "data", temporary=tmp_path / "temporary")
    for name, size in {"nakadi.db": 10, "nakadi.db-wal": 5, "archive/a/b": 3, "archive/c": 1, "server.log": 2}.items():
        (folders.data / name).parent.mkdir(parents=True, exist_ok=True)
        (folders.data / name).write_bytes(bytes(size))
    folders.temporary.mkdir()
    (folders.temporary / "left-behind").touch()
    sample = take_sample([psutil.Process()], folders, seconds=1.5, life=0, events=7)
    assert (sample.data_file, sample.write_ahead_log, sample.archive, sample.archive_objects) == (10, 5, 4, 2)
    assert (sample.log, sample.tables, sample.temporary_files, sample.other_files) == (2, 0, 1, 0)
    assert sample.memory > MB
    assert sample.threads >= 1
    with recording(tmp_path / "samples.csv") as record:
        record(sample)
        assert read_samples(tmp_path / "samples.csv") == [sample]
    later = replace(sample, memory=2 * sample.memory, archive_objects=3)
    texts = {each.text for each in ET.fromstring(draw_samples([sample, later])).iter() if each.tag.endswith("text")}
    assert {"memory, MB", "archive, objects"} <= texts
    assert "tables, MB" not in texts
