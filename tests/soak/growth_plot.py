"""Draws the samples of a run as SVG: a small chart for each series, one below the other, with the same time axis."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from tests.soak.samples import Sample
from tests.support.lazy_modules import LazyModule

mpl = LazyModule("matplotlib")
mpl_figure = LazyModule("matplotlib.figure")

MAX_POINTS = 180
"""With more points, a chart of this width would show no more detail, and the file would be large."""


class Chart(NamedTuple):
    title: str
    value: Callable[[Sample], float]


CHARTS = (
    Chart("memory, MB", lambda sample: sample.memory / 1e6),
    Chart("descriptors", lambda sample: sample.descriptors),
    Chart("threads", lambda sample: sample.threads),
    Chart("data file, MB", lambda sample: sample.data_file / 1e6),
    Chart("write-ahead log, MB", lambda sample: sample.write_ahead_log / 1e6),
    Chart("archive, MB", lambda sample: sample.archive / 1e6),
    Chart("archive, objects", lambda sample: sample.archive_objects),
    Chart("tables, MB", lambda sample: sample.tables / 1e6),
    Chart("temporary files", lambda sample: sample.temporary_files),
    Chart("processes", lambda sample: sample.processes),
    Chart("published events, thousands", lambda sample: sample.events / 1e3),
)


def draw_samples(samples: Sequence[Sample]) -> bytes:
    """Draw each life of the broker as a separate line, and leave out the charts of series that never change."""
    charts = [each for each in CHARTS if len({each.value(sample) for sample in samples}) > 1]
    # Text stays text instead of outlines, and the same samples always yield the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "nakadi", "path.simplify_threshold": 0.5}):
        figure = mpl_figure.Figure(figsize=(9, 1.1 * len(charts)), layout="constrained")
        for chart, axes in zip(charts, figure.subplots(len(charts), sharex=True, squeeze=False)[:, 0], strict=True):
            _draw_chart(axes, chart, samples)
        axes.set_xlabel("minutes since the start of the load; each line is a life of the broker", fontsize=8)
        content = BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    # A tenth of a point is less than the width of a line; the six decimals that matplotlib writes are half of the file.
    return re.sub(rb"(\d\.\d)\d+", rb"\1", content.getvalue())


def _draw_chart(axes: Any, chart: Chart, samples: Sequence[Sample]) -> None:
    step = -(-len(samples) // MAX_POINTS)
    for _, life in itertools.groupby(samples[::step], key=lambda each: each.life):
        points = list(life)
        axes.plot([each.seconds / 60 for each in points], [chart.value(each) for each in points], color="C0", lw=1)
    axes.set_title(chart.title, loc="left", fontsize=8, pad=2)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.locator_params(axis="y", nbins=3)
    axes.grid(visible=True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
