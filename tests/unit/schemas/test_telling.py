"""How much of what is wrong is told."""

from nakadi.schemas.values import MAX_TOLD, worth_telling


def test_short_lists_are_told_whole():
    """Usually everything is told. (R158, R192)"""
    assert list(worth_telling(["a", "b"], str)) == ["a", "b"]


def test_long_lists_end_somewhere():
    """Of endless faults the first are told, at least one of them. (R158, R192, deviation)"""
    assert list(worth_telling(iter(lambda: "x" * MAX_TOLD, None), str)) == ["x" * MAX_TOLD] * 2
