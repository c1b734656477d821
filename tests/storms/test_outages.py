"""While the indexer and housekeeping come and go, no remaining event is skipped, and no offset is given twice."""

import logging

import pytest

from tests.storms.outages import days_of, start_outages

STEPS = 40


@pytest.mark.parametrize("seed", range(4))
def test_outages_of_every_length_skip_nothing_that_is_left(seed, caplog):
    """Whether an outage takes minutes or longer than the stream keeps events, with several tasks, splits, merges, new
    timelines and interruptions: each consumer gets the remaining events in order, and a new timeline begins after each
    loss.
    """
    caplog.set_level(logging.CRITICAL)
    figures = days_of(seed, STEPS)
    print(f"seed {seed}: {figures}")
    assert (figures.doubled, figures.skipped, figures.missed, figures.lost, figures.left) == (0, 0, 0, 0, 0)
    assert figures.unclear == []
    assert figures.acknowledged > 20
    assert figures.forgotten > 0
    assert figures.new_timelines > 0


def test_no_timeline_is_begun_while_someone_looks(caplog):
    """Shards that are idle for days, split or merge count as no gap, as long as the indexer and housekeeping run."""
    caplog.set_level(logging.CRITICAL)
    with start_outages(11) as days:
        for _ in range(STEPS):
            days.indexer_is_here = days.keeper_is_here = True
            days.step()
        figures = days.finish()
    assert (figures.wrong, figures.new_timelines, figures.forgotten) == (0, 0, 0)
