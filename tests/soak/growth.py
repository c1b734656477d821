"""Decides whether anything grew that should not have, from robust slopes over the samples of a run.

A slope is the median of the slopes between all pairs of samples (Theil and Sen): a quarter of the samples may be far
off, such as those taken during a merge of the archive, and the slope hardly changes. A process holds less after each
restart, so its series are judged twice: within lives, by the slopes between samples of the same life, and from life to
life, by the medians of the lives. A run with a restart every ten minutes shows growth from life to life. Slow growth
within a life, which the noise of a busy machine hides for some minutes, shows only in a run without restarts.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.soak.samples import Sample

MAX_JUDGED_SAMPLES = 400
"""Of longer series, only every n-th sample is judged, because the number of pairs grows with the square of the samples.
"""

MIN_JUDGED_SAMPLES = 10

MIN_JUDGED_SECONDS_OF_A_LIFE = 180
"""A broker returns memory to the system each minute: in a shorter time, most pairs of samples are on the rising side of
a sawtooth.
"""


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
    """`gained` is the slope times the `judged_seconds`; the growth is excessive if it is more than `allowed`.

    Within lives, `judged_seconds` is the length of the longest life: no process grows for longer.
    """

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


class _Point(NamedTuple):
    seconds: float
    value: float


def measure_growths(samples: Sequence[Sample], limit: Limit) -> Sequence[Growth]:
    """Measure the growth within the run or its lives, and from life to life; empty if the series had no time to
    settle.
    """
    parts = _settled_parts(samples, limit)
    if not parts:
        return []
    growths = []
    if limit.settles_in_life is None or _longest_seconds(parts) >= MIN_JUDGED_SECONDS_OF_A_LIFE:
        growths.append(_measure_growth(limit.series, parts, limit))
    if len(parts) > 1:
        growths.append(_measure_growth(f"{limit.series} by life", [[_middle(part) for part in parts]], limit))
    return growths


def _settled_parts(samples: Sequence[Sample], limit: Limit) -> Sequence[Sequence[_Point]]:
    """The values of the run, or of each of its lives, from when they have settled."""
    by_life = limit.settles_in_life is not None
    lives = [list(life) for _, life in itertools.groupby(samples, key=lambda each: each.life if by_life else None)]
    parts = [
        _settled_points(life, max(limit.settles_after, life[0].seconds + (limit.settles_in_life or 0)), limit)
        for life in lives
    ]
    return [part for part in parts if len(part) >= MIN_JUDGED_SAMPLES]


def _settled_points(samples: Sequence[Sample], begin: float, limit: Limit) -> Sequence[_Point]:
    return [_Point(each.seconds, limit.value(each)) for each in samples if each.seconds >= begin]


def _middle(part: Sequence[_Point]) -> _Point:
    return _Point(*(statistics.median(values) for values in zip(*part, strict=True)))


def _longest_seconds(parts: Sequence[Sequence[_Point]]) -> float:
    return max(part[-1].seconds - part[0].seconds for part in parts)


def _measure_growth(series: str, parts: Sequence[Sequence[_Point]], limit: Limit) -> Growth:
    step = -(-sum(len(part) for part in parts) // MAX_JUDGED_SAMPLES)
    slopes = [
        (later.value - earlier.value) / (later.seconds - earlier.seconds)
        for part in parts
        for earlier, later in itertools.combinations(part[::step], 2)
    ]
    median = statistics.median(point.value for part in parts for point in part)
    judged_seconds = _longest_seconds(parts)
    return Growth(
        series=series,
        median=median,
        gained=statistics.median(slopes) * judged_seconds,
        allowed=max(limit.share * median, limit.amount),
        judged_seconds=judged_seconds,
    )
