"""Plots of measured figures."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from nakadi.event_types.table_states import TableState
from nakadi_jobs import plots

FIRST = datetime(2026, 11, 20, 10, tzinfo=UTC)


def measured_window(hour):
    sizes = {"size_p50": 100, "size_p95": 200, "size_max": 300}
    rates = {"per_minute_mean": 1.0, "per_minute_peak": 2, "partition_skew": 1.0, "events": 60}
    return {"event_type": "order.placed", "window_start": FIRST + hour, "window_minutes": 60, **sizes, **rates}


def test_one_window_fills_its_plot():
    """The axis of time spans the measured period, even if that is a single hour."""
    one = [measured_window(timedelta(0))]
    axes = plots._draw_figure({"order.placed": one}, "Events", plots._draw_rates, logarithmic=True).axes[0]
    left, right = axes.get_xlim()
    assert (right - left) * 24 == pytest.approx(1)
    mean, peak = axes.get_lines()
    assert (list(mean.get_ydata()), list(peak.get_ydata())) == ([1.0, 1.0], [2, 2])
    assert list(mean.get_xdata()) == [FIRST, FIRST + timedelta(hours=1)]


def test_all_windows_are_on_the_plot():
    """The plot spans the time from the beginning of the first window to the end of the last."""
    rows = [measured_window(timedelta(hours=hour)) for hour in (0, 5)]
    assert plots._time_range({"order.placed": rows}) == (FIRST, FIRST + timedelta(hours=6))


def test_every_plot_is_drawn():
    """Rates, sizes and skew are drawn for one window and for several."""
    for windows in ([measured_window(timedelta(0))], [measured_window(timedelta(hours=hour)) for hour in range(3)]):
        images = plots.draw_plots(windows)
        assert set(images) == {"rate.png", "size.png", "skew.png"}
        assert all(content.startswith(b"\x89PNG") for content in images.values())


def test_a_bar_shows_each_tables_latency_and_counts():
    """A bar shows how long events took, the slowest first; its text names the counts and the missing events."""
    state = TableState(
        table_name="a",
        next_offsets={},
        row_count=18250,
        misfit_count=3,
        unreadable_count=2,
        updated_at=FIRST,
        latency_seconds=90.0,
    )
    states = {
        "slow": replace(state, latency_seconds=600.0),
        "usual": state,
        "unknown": replace(state, latency_seconds=None),
    }
    axes = plots._draw_tables(states, FIRST + timedelta(hours=2)).axes[0]

    assert [text.get_text() for text in axes.get_yticklabels()] == ["unknown", "usual", "slow"]
    assert [bar.get_width() for bar in axes.patches] == [0.0, 1.5, 10.0]
    assert axes.texts[0].get_text() == "18,250 rows, 3 misfits, 2 missing; changed 2.0 h ago"
    assert plots.draw_table_plots(states, FIRST)["tables.png"].startswith(b"\x89PNG")
    assert plots.draw_table_plots({}, FIRST) == {}
