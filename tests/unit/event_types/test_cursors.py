from datetime import UTC, datetime

import pytest

from nakadi.event_types.cursors import (
    CursorError,
    CursorErrorKind,
    NumberedOffset,
    fits_64_bits,
    offset_digits,
    parse_offset,
)
from nakadi.event_types.positions import position_in_newest_timeline
from nakadi.model.event_type import Cursor, Position
from tests.support.builders import an_event_type


def parse(offset: str) -> object:
    return parse_offset(Cursor("0", offset))


def refusal(offset: str) -> str:
    with pytest.raises(CursorError) as refused:
        parse(offset)
    return str(refused.value)


@pytest.mark.parametrize(
    ("position", "published"),
    [
        (Position(1, 12), "001-0001-000000000000000012"),
        (Position(15, 0), "001-000f-000000000000000000"),
        (Position(1, -1), "001-0001--1"),
        (Position(0xABCD, 10**17), "001-abcd-100000000000000000"),
    ],
)
def test_position_is_published_with_version_timeline_and_number(position, published):
    """A position is published as a version, a timeline in hexadecimal digits and a number of 18 digits. (C1, S88)"""
    assert str(position) == published


def test_published_positions_can_be_sorted_as_strings():
    """Positions of one partition sort as strings in the order of the stream; the start of a timeline sorts before its
    events.

    (S89)
    """
    in_order = [Position(1, -1), Position(1, 0), Position(1, 99), Position(2, -1), Position(10, -1), Position(16, 3)]
    assert sorted(in_order, key=str) == in_order


@pytest.mark.parametrize("position", [Position(1, -1), Position(1, 0), Position(31, 10**17 + 3)])
def test_published_positions_can_be_parsed(position):
    """Every published offset can be parsed to its position. (C1, C4)"""
    place = parse(str(position))
    assert isinstance(place, NumberedOffset)
    assert (place.timeline_order, place.offset) == (position.timeline, position.offset)


@pytest.mark.parametrize(
    ("offset", "order", "number"),
    [
        ("001-0001-5", 1, 5),
        ("001-0001-0000000000000000000000000005", 1, 5),
        ("001-00AF-0", 0xAF, 0),
        ("001-00af-0", 0xAF, 0),
        ("001-0002--1", 2, -1),
        ("001-0002--17", 2, -17),
    ],
)
def test_versioned_offset_is_parsed_leniently(offset, order, number):
    """In a versioned offset, the number needs no padding, and the timeline may be in either case. (C4)"""
    place = parse(offset)
    assert isinstance(place, NumberedOffset)
    assert (place.timeline_order, place.offset) == (order, number)


@pytest.mark.parametrize(
    "offset",
    ["001", "001-", "001-1", "001-1-5", "001-00001-5", "001-000g-5", "001-0001-", "001-0001-x", "001-0001-1-1", "0012"],
)
def test_malformed_versioned_offset_is_refused_without_names(offset):
    """An offset that begins with 001 is parsed as a versioned offset; the refusal does not name the partition and the
    offset. (C3, C4, C9, S94)"""
    assert refusal(offset) == "invalid offset null for partition null"


@pytest.mark.parametrize("offset", ["BEGIN", "begin", "Begin"])
def test_begin_is_parsed_in_any_letter_case(offset):
    """The word BEGIN is recognized in any letter case. (C5, L34, S90)"""
    assert parse(offset) == "BEGIN"


@pytest.mark.parametrize(
    ("offset", "padded", "number"),
    [
        ("7", "000000000000000007", 7),
        ("000000000000000012", "000000000000000012", 12),
        ("-1", "-1", -1),
        ("0", "0" * 18, 0),
    ],
)
def test_plain_number_means_the_first_timeline(offset, padded, number):
    """A plain number is an offset in the first timeline, and is padded to 18 digits. (C3, C5, S90)"""
    place = parse(offset)
    assert place == NumberedOffset(None, padded)
    assert place.offset == number


@pytest.mark.parametrize("offset", ["", "xer", "1.5", "+1", "1 ", "٣", "000-0001-1", "002-0001-1", "--1", "END", "20-"])
def test_any_other_offset_is_refused_with_its_partition(offset):
    """A string that is not an offset in any form is refused; the refusal names the partition and the offset. (C5, C8,
    C11, S93)"""
    assert refusal(offset) == f"invalid offset {offset} for partition 0"


@pytest.mark.parametrize(
    ("offset", "moment"),
    [
        ("2026-11-21T12:00:00Z", datetime(2026, 11, 21, 12, tzinfo=UTC)),
        ("2026-11-21t12:00:00.25z", datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-11-21T12:00:00+02:00", datetime(2026, 11, 21, 10, tzinfo=UTC)),
        ("1999-12-31T23:59:59.999999-00:30", datetime(2000, 1, 1, 0, 29, 59, 999_999, tzinfo=UTC)),
    ],
)
def test_date_time_is_a_valid_offset(offset, moment):
    """A date-time in any time zone is accepted as an offset."""
    assert parse(offset) == moment


@pytest.mark.parametrize(
    "offset",
    [
        "2026-11-21",
        "2026-11-21T12:00:00",
        "2026-11-21 12:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-11-21T25:00:00Z",
        "2026-11-21T12:00:00+0200",
        "0001-01-01T00:00:00+14:00",
    ],
)
def test_date_time_must_be_whole_and_exist(offset):
    """A date without a time, a time without a zone, or a day that does not exist is not a position. (C5)"""
    assert refusal(offset) == f"invalid offset {offset} for partition 0"


@pytest.mark.parametrize(
    ("number", "does"),
    [
        ("9223372036854775807", True),
        ("9223372036854775808", False),
        ("-9223372036854775808", True),
        ("-9223372036854775809", False),
        ("9" * 10_000, False),
        ("-" + "9" * 10_000, False),
        ("0" * 10_000, True),
    ],
)
def test_number_beyond_64_bits_does_not_fit(number, does):
    """Numbers of any length are parsed, and those beyond 64 bits are recognized. (L29)"""
    assert fits_64_bits(Position(1, parse(number).offset)) is does
    assert fits_64_bits(Position(1, parse(f"001-0001-{number}").offset)) is does


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (CursorErrorKind.PARTITION_NOT_FOUND, "non existing partition 7"),
        (
            CursorErrorKind.UNAVAILABLE,
            (
                "offset 12 for partition 7 event type order.created is unavailable as retention time of data elapsed. "
                "PATCH partition offset with valid and available offset"
            ),
        ),
        (CursorErrorKind.NULL_OFFSET, "offset must not be null"),
        (CursorErrorKind.NULL_PARTITION, "partition must not be null"),
        (CursorErrorKind.INVALID_FORMAT, "invalid cursor format, partition: 7 offset: 12"),
        (CursorErrorKind.INVALID_OFFSET, "invalid offset 12 for partition 7"),
    ],
)
def test_each_error_has_its_message(kind, text):
    """Each fault of a cursor has its own message. (C11, S93)"""
    assert str(CursorError(kind, "7", "12", "order.created")) == text


def test_error_without_a_cursor_has_null_in_its_message():
    """The message of an error without a cursor contains null in its place. (C11, L22)"""
    assert str(CursorError(CursorErrorKind.INVALID_FORMAT)) == "invalid cursor format, partition: null offset: null"
    assert str(CursorError(CursorErrorKind.INVALID_OFFSET, "", "")) == "invalid offset  for partition "


@pytest.mark.parametrize(
    ("position", "sent", "shown"),
    [
        (Position(1, 12), "001-0001-12", "12"),
        (Position(1, 12), "12", "000000000000000012"),
        (Position(1, 12), "", "000000000000000012"),
        (Position(1, 12), "BEGIN", "000000000000000012"),
        (Position(2, -1), "001-0001-5", "-1"),
    ],
)
def test_number_is_reported_as_it_was_sent(position, sent, shown):
    """The number in an error is the one that was sent, unless the cursor was moved to the next timeline. (L28, S94)"""
    assert offset_digits(position, sent) == shown


@pytest.mark.parametrize(
    ("offset", "position"),
    [
        ("001-0001-000000000000000012", Position(1, 12)),
        ("001-0001-12", Position(1, 12)),
        ("001-0001--1", Position(1, -1)),
        ("001-0001-0000000000000000012", None),
        ("001-0002-000000000000000012", None),
        ("12", None),
        ("BEGIN", None),
        ("002-0001-000000000000000012", None),
    ],
)
def test_offsets_in_the_newest_timeline_are_read_at_once(offset, position):
    """The fast path reads an offset in the newest timeline like the full parser, and leaves all other offsets to that
    parser.
    """
    found = position_in_newest_timeline(an_event_type(), offset)

    assert found == position
    if found is not None:
        full = parse(offset)
        assert isinstance(full, NumberedOffset)
        assert (full.timeline_order, full.offset) == (found.timeline, found.offset)
