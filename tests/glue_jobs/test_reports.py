"""The reports of a run while it works, and at its end."""

from datetime import UTC, datetime

import pytest

from nakadi_jobs.reports import Report, SubjectProgress

BEGUN = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("done", "seconds", "line"),
    [
        (0, 5, "order.placed: 0 of 600 events"),
        (200, 5, "order.placed: 200 of 600 events, 40/s, 10 s left"),
        (600, 10, "order.placed: 600 of 600 events, 60/s, 0 s left"),
        (200, 0, "order.placed: 200 of 600 events"),
    ],
)
def test_progress_has_a_pace_and_an_end(done, seconds, line):
    """The progress shows the event type, the numbers of processed and of all events, the rate, and the remaining
    seconds.
    """
    assert SubjectProgress("order.placed", 600, 100.0, done).line(100.0 + seconds) == line


def test_what_is_done_is_no_longer_under_way():
    """An event type is in progress from the first of its events that a job processes to the last."""
    report = Report("compaction", BEGUN)
    report.expect("order.placed", 10)
    report.advance("order.placed", 4)
    assert report.in_progress["order.placed"].done == 4
    report.advance("order.placed", 6)
    assert report.in_progress == {}


def test_warnings_are_reported_and_change_no_exit_code(capsys):
    """A warning is in the summary and in the document; only a complaint needs attention."""
    report = Report("compaction", BEGUN)
    report.warn("order.placed", "2 events do not fit")
    report.count("misfits", "order.placed", 2)
    report.count("misfits", "order.placed", 3)

    assert (report.exit_code, capsys.readouterr().err) == (0, "Warning: order.placed: 2 events do not fit\n")
    assert report.summary() == "compaction: done.\n  Warning: order.placed: 2 events do not fit"
    assert '"warnings": [' in report.document(BEGUN)
    assert report.details["misfits"] == {"order.placed": 5}

    report.complain("order.paid", "is not done")
    assert report.exit_code == 3
