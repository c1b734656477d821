"""Plots of measurements: rates, sizes, skew of partitions, and progress of tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any

from nakadi.event_types.table_states import TableState

MAX_LINES = 8
"""More lines than this cannot be distinguished."""

Rows = Sequence[Any]

Draw = Callable[[Any, str, Rows, Any], None]


def draw_plots(history: Rows) -> Mapping[str, bytes]:
    """Plots of the event types with the most events, as PNG by file name."""
    if not history:
        return {}
    rows_by_event_type = _busiest_event_types(history)
    return {
        "rate.png": _draw_picture(rows_by_event_type, "Events a minute", _draw_rates, logarithmic=True),
        "size.png": _draw_picture(rows_by_event_type, "Bytes of an event", _draw_sizes, logarithmic=True),
        "skew.png": _draw_picture(
            rows_by_event_type, "Events of the fullest partition, in even shares", _draw_skew, logarithmic=False
        ),
    }


def _busiest_event_types(history: Rows) -> Mapping[str, Rows]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for row in history:
        found[row["event_type"]].append(row)
    order = sorted(found, key=lambda name: -sum(row["events"] for row in found[name]))
    return {name: found[name] for name in order[:MAX_LINES]}


def _time_range(rows_by_event_type: Mapping[str, Rows]) -> tuple[datetime, datetime]:
    """The limits of a time axis, from the first window to the end of the last: by default, an axis with only one moment
    would span years.
    """
    windows = [row for rows in rows_by_event_type.values() for row in rows]
    begins = [row["window_start"] for row in windows]
    ends = [row["window_start"] + timedelta(minutes=row["window_minutes"]) for row in windows]
    return min(begins), max(ends)


def _step_points(rows: Rows, name: str) -> tuple[list[datetime], list[Any]]:
    """A value for each window, from its beginning to its end: a single window is a line, too."""
    end = rows[-1]["window_start"] + timedelta(minutes=rows[-1]["window_minutes"])
    return [*(row["window_start"] for row in rows), end], [*(row[name] for row in rows), rows[-1][name]]


def _draw_line(axes: Any, rows: Rows, name: str, colour: Any, **more: Any) -> None:
    axes.plot(*_step_points(rows, name), color=colour, drawstyle="steps-post", **more)


def _draw_rates(axes: Any, name: str, rows: Rows, colour: Any) -> None:
    _draw_line(axes, rows, "per_minute_mean", colour, label=name)
    _draw_line(axes, rows, "per_minute_peak", colour, linestyle=":", linewidth=1)


def _draw_sizes(axes: Any, name: str, rows: Rows, colour: Any) -> None:
    _draw_line(axes, rows, "size_p50", colour, label=name)
    times, low = _step_points(rows, "size_p50")
    axes.fill_between(times, low, _step_points(rows, "size_p95")[1], color=colour, alpha=0.15, step="post")
    _draw_line(axes, rows, "size_max", colour, linestyle=":", linewidth=1)


def _draw_skew(axes: Any, name: str, rows: Rows, colour: Any) -> None:
    _draw_line(axes, rows, "partition_skew", colour, label=name)
    axes.axhline(1, color="grey", linewidth=0.5)


def draw_table_plots(states: Mapping[str, TableState], now: datetime) -> Mapping[str, bytes]:
    """Plots of the tables with the greatest latency, as PNG by file name; `states` are by event type."""
    return {"tables.png": _as_png(_draw_tables(states, now))} if states else {}


def _draw_tables(states: Mapping[str, TableState], now: datetime) -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415  # only who asks for plots needs it

    slowest = sorted(states, key=lambda name: -(states[name].latency_seconds or 0.0))[:MAX_LINES]
    # The first of a list of bars is the lowest one.
    slowest_states = {name: states[name] for name in reversed(slowest)}
    figure = Figure(figsize=(11, 1.5 + 0.45 * len(slowest_states)), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(
        list(slowest_states),
        [(each.latency_seconds or 0.0) / 60 for each in slowest_states.values()],
        height=0.6,
    )
    axes.bar_label(bars, labels=[_summary(each, now) for each in slowest_states.values()], padding=4, fontsize=9)
    axes.set_title("Minutes from publishing to the table\n", loc="left", fontweight="bold")
    subtitle = "the oldest event of the last commit to each table"
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, fontsize=9, color="dimgrey")
    axes.margins(x=0.6)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _summary(state: TableState, now: datetime) -> str:
    """The counts of a table, its missing events, and the time of its last change."""
    ago = (now - state.updated_at) / timedelta(hours=1)
    counts = [f"{state.row_count:,} rows", f"{state.misfit_count:,} misfits", f"{state.unreadable_count:,} missing"]
    return f"{', '.join(counts)}; changed {ago:.1f} h ago"


SUBTITLES: Mapping[Draw, str] = {
    _draw_rates: "line: mean of the window, dotted: its busiest minute",
    _draw_sizes: "line: p50, shade: up to p95, dotted: greatest",
    _draw_skew: "1: all partitions carry the same",
}


def _draw_picture(rows_by_event_type: Mapping[str, Rows], title: str, draw: Draw, *, logarithmic: bool) -> bytes:
    return _as_png(_draw_figure(rows_by_event_type, title, draw, logarithmic=logarithmic))


def _as_png(figure: Any) -> bytes:
    content = BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()


def _draw_figure(rows_by_event_type: Mapping[str, Rows], title: str, draw: Draw, *, logarithmic: bool) -> Any:
    from matplotlib import dates, ticker  # noqa: PLC0415  # only who asks for plots needs it
    from matplotlib.figure import Figure  # noqa: PLC0415  # as above

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, rows) in enumerate(rows_by_event_type.items()):
        draw(axes, name, rows, f"C{number}")
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_title(f"{title}\n", loc="left", fontweight="bold")
    axes.text(0, 1.02, SUBTITLES[draw], transform=axes.transAxes, fontsize=9, color="dimgrey")
    formatter: Any = dates.ConciseDateFormatter
    axes.xaxis.set_major_formatter(formatter(axes.xaxis.get_major_locator()))
    axes.grid(visible=True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    on_axis: Any = dates.date2num
    first, last = _time_range(rows_by_event_type)
    axes.set_xlim(on_axis(first), on_axis(last))
    return figure
