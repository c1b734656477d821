"""The header with the positions at which a stream begins."""

import pytest

from nakadi.event_types.cursors import CursorError
from nakadi.model.event_type import Cursor
from nakadi.model.outcomes import Malformed
from nakadi.streaming.session import parse_cursors_header, parse_header_ends

ONE = Cursor("0", "001-0001-000000000000000012")


@pytest.mark.parametrize(
    ("header", "cursors"),
    [
        ('[{"partition":"0","offset":"001-0001-000000000000000012"}]', (ONE,)),
        (
            ' [ {"offset": "BEGIN", "partition": "1"} ,{"partition":"0","offset":"5"}] ',
            (Cursor("1", "BEGIN"), Cursor("0", "5")),
        ),
        ('[{"partition":"0","offset":"001-0001-000000000000000012","event_type":"a","x":{"y":[1]}}]', (ONE,)),
        ('[{"partition":0,"offset":12}]', (Cursor("0", "12"),)),
        ('[{"partition":-1.50,"offset":1e5}]', (Cursor("-1.50", "1e5"),)),
        ('[{"partition":true,"offset":false}]', (Cursor("true", "false"),)),
        ('[{"partition":"0","offset":"1"}] and more', (Cursor("0", "1"),)),
        ('[{"partition":"0","offset":"1"}], [{"partition":"1","offset":"1"}]', (Cursor("0", "1"),)),
        ("[]", ()),
        ('[{"partition":0,"offset":99999999999999999999999999}]', (Cursor("0", "99999999999999999999999999"),)),
    ],
)
def test_cursors_are_read_from_a_list_of_objects(header, cursors):
    """Unknown members and text after the list have no effect, and numbers are used as written. (L20, L32)"""
    assert parse_cursors_header(header) == cursors


@pytest.mark.parametrize(
    "header",
    [
        "",
        '[{"partition":"\\ud800","offset":"BEGIN"}]',
        '[{"partition":"0","offset":"\\udc00\\ud800"}]',
        '[{"partition":"0","offset":"BEGIN","\\ud83d":1}]',
        "garbage",
        "{}",
        '{"partition":"0","offset":"1"}',
        '"0"',
        "[1]",
        '["0"]',
        "[[]]",
        '[{"partition":"0","offset":"1"}',
        "[{'partition':'0','offset':'1'}]",
        '[{"partition":"0","offset":{}}]',
        '[{"partition":["0"],"offset":"1"}]',
        '[{"partition":"0","offset":NaN}]',
        '[{"partition":"0","offset":"1","until":[]}]',
        "[" * 100_000,
    ],
)
def test_anything_else_is_bad_syntax(header):
    """Any text that is not a list of objects is malformed. (L21)"""
    with pytest.raises(Malformed, match=r"^incorrect syntax of X-nakadi-cursors header$"):
        parse_cursors_header(header)


def test_a_cursor_may_say_where_its_partition_ends():
    """(L78)"""
    header = (
        '[{"partition":"0","offset":"1","until":"7"},{"partition":1,"offset":"1"},'
        '{"partition":2,"offset":"1","until":9},{"partition":"3","offset":"1","until":null}]'
    )
    assert parse_header_ends(header) == (Cursor("0", "7"), Cursor("2", "9"))


@pytest.mark.parametrize("header", ["null", "[null]", '[{"partition":"0","offset":"1"},null]'])
def test_null_is_no_cursor(header):
    """A null in place of the list or of a cursor is malformed. (L31)"""
    with pytest.raises(Malformed):
        parse_cursors_header(header)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ('[{"offset":"1"}]', "partition must not be null"),
        ('[{"partition":null,"offset":"1"}]', "partition must not be null"),
        ('[{"partition":"0"}]', "offset must not be null"),
        ('[{"partition":"0","offset":null}]', "offset must not be null"),
        ("[{}]", "partition must not be null"),
        ('[{"partition":"0"},{"offset":"1"}]', "offset must not be null"),
    ],
)
def test_both_members_are_needed(header, text):
    """Missing and null members are reported cursor by cursor, the partition first. (L23, L36a)"""
    with pytest.raises(CursorError, match=f"^{text}$"):
        parse_cursors_header(header)
