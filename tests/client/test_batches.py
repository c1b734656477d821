"""A partial commit covers no event that the loop has not finished."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi_client.batches import Batch
from nakadi_client.decoding import Cursor


def offset_text(number, timeline=1):
    return f"001-{timeline:04x}-{number:018d}" if number >= 0 else f"001-{timeline:04x}--1"


@given(
    numbers=st.lists(st.integers(0, 60), min_size=1, unique=True).map(sorted),
    data=st.data(),
)
def test_a_part_of_a_batch_covers_only_what_is_done(numbers, data):
    """A commit of a part of a batch covers only finished events, for any missing numbers and any known position
    before the batch.
    """
    before = data.draw(st.integers(-1, numbers[0] - 1))
    batch = Batch(numbers, Cursor("0", offset_text(numbers[-1]), "t"), "s", before=offset_text(before))
    loop = iter(batch)
    finished = []
    for number in loop:
        cursor = batch.cursor_of_progress()
        if cursor is not None:
            assert all(other in finished for other in numbers if offset_text(other) <= cursor.offset)
        finished.append(number)
    assert batch.cursor_of_progress().offset <= batch.offset


@pytest.mark.parametrize("before", [None, "", "BEGIN", offset_text(1, timeline=2), "5"])
def test_nothing_is_said_where_the_place_before_is_unknown(before):
    """If the position before the batch is in another timeline, the batch does not say how many events are missing,
    because each timeline has its own numbers.
    """
    batch = Batch([1, 2], Cursor("0", offset_text(9), "t"), "s", before=before)
    for _ in batch:
        assert batch.cursor_of_progress() is None
