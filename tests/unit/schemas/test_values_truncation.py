"""How many faults are reported."""

from nakadi.schemas.values import MAX_MESSAGE_CHARACTERS, first_items_fitting_message


def test_short_lists_are_shown_whole():
    """A short list is reported completely. (R158, R192)"""
    assert list(first_items_fitting_message(["a", "b"], str)) == ["a", "b"]


def test_long_lists_end_somewhere():
    """Of very many faults, the first ones are reported, and at least one. (R158, R192, deviation)"""
    assert (
        list(first_items_fitting_message(iter(lambda: "x" * MAX_MESSAGE_CHARACTERS, None), str))
        == ["x" * MAX_MESSAGE_CHARACTERS] * 2
    )
