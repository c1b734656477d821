"""While calls to Kinesis, DynamoDB and S3 fail, no acknowledged event is lost, and no offset changes."""

import logging

import pytest

from tests.storms.storm import run_storm

STEPS = 90


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_nothing_is_lost_in_a_storm(seed, caplog):
    """Throttling, 500s, timeouts before and after the effect, expired iterators and credentials, a slow archive:
    each acknowledged event is there once, complete, in order and at its offset, and each failure was reported clearly.
    """
    caplog.set_level(logging.CRITICAL)
    figures = run_storm(seed, STEPS)
    print(f"seed {seed}: {figures}")
    assert (figures.lost, figures.doubled, figures.torn, figures.changed, figures.misled) == (0, 0, 0, 0, 0)
    assert figures.unclear == []
    assert figures.faults > 20
    assert figures.acknowledged > 30
    assert figures.documents_acknowledged > 5


@pytest.mark.long
def test_a_storm_comes_again():
    """The same seed repeats the same storm, so findings can be investigated."""
    assert run_storm(3, 25) == run_storm(3, 25)
