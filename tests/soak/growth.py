"""Whether anything grew that should not have: robust slopes over the samples of a run.

A slope is the median of the slopes between all pairs of samples (Theil and Sen): a third of the samples may be far off,
such as those taken during a merge of the archive, and it stays the same. What a process holds is compared within a
life of the process only, since each restart begins with less. `Growth.share` relates what a series gained over all of
the judged time to its median.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.soak.samples import Sample

MAX_JUDGED_SAMPLES = 400
"""Of longer series, every n-th sample is judged: there are as many pairs as the square of the samples."""

MIN_JUDGED_SAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Once it has settled, a series may gain `share` of its median or `amount`, whichever is more.

    It settles `settles_after` seconds after the start of the run and, if each life of the broker begins it anew,
    `settles_in_life` seconds after the start of that life.
    """

    series: str
    value: Callable[[Sample], float]
    share: float
    amount: float
    settles_after: float = 0
    settles_in_life: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """`gained` is the slope times the `judged_seconds`; `is_excessive` if it is more than `allowed`."""

    series: str
    median: float
    gained: float
    allowed: float
    judged_seconds: float

    @property
    def is_excessive(self) -> bool:
        return self.gained > self.allowed

    def __str__(self) -> str:
        verdict = "GROWS" if self.is_excessive else "stays"
        return (
            f"{self.series:20} {verdict}: median {self.median:,.0f}, gained {self.gained:+,.1f}"
            f" (allowed {self.allowed:,.0f}) in {self.judged_seconds / 60:.1f} minutes"
        )


def measure_growth(samples: Sequence[Sample], limit: Limit) -> Growth | None:
    """None if the run was too short for the series to settle."""
    parts = _settled_parts(samples, limit)
    count = sum(len(part) for part in parts)
    if count < MIN_JUDGED_SAMPLES:
        return None
    step = -(-count // MAX_JUDGED_SAMPLES)
    slopes = [
        (limit.value(later) - limit.value(earlier)) / (later.seconds - earlier.seconds)
        for part in parts
        for earlier, later in itertools.combinations(part[::step], 2)
    ]
    median = statistics.median(limit.value(each) for part in parts for each in part)
    judged_seconds = sum(part[-1].seconds - part[0].seconds for part in parts)
    return Growth(
        series=limit.series,
        median=median,
        gained=statistics.median(slopes) * judged_seconds,
        allowed=max(limit.share * median, limit.amount),
        judged_seconds=judged_seconds,
    )


def _settled_parts(samples: Sequence[Sample], limit: Limit) -> list[Sequence[Sample]]:
    """The samples whose values can be compared with one another, without the time before they settle."""
    if limit.settles_in_life is None:
        settled = [each for each in samples if each.seconds >= limit.settles_after]
        return [settled] if settled else []
    lives = [list(life) for _, life in itertools.groupby(samples, key=lambda each: each.life)]
    begins = [max(limit.settles_after, life[0].seconds + limit.settles_in_life) for life in lives]
    settled_lives = [
        [each for each in life if each.seconds >= begin] for life, begin in zip(lives, begins, strict=True)
    ]
    return [life for life in settled_lives if len(life) > 1]
