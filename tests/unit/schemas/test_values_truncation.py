"""How many faults are reported."""

from nakadi.schemas.values import MAX_MESSAGE_CHARACTERS, first_items_fitting_message


def test_short_lists_are_shown_whole():
    """Usually everything is reported. (R158, R192)"""
    assert list(first_items_fitting_message(["a", "b"], str)) == ["a", "b"]


def test_long_lists_end_somewhere():
    """Among endless faults, the first are reported, at least one of them. (R158, R192, deviation)"""
    assert (
        list(first_items_fitting_message(iter(lambda: "x" * MAX_MESSAGE_CHARACTERS, None), str))
        == ["x" * MAX_MESSAGE_CHARACTERS] * 2
    )
