"""Records of the stream as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi.engines.kinesis import envelopes
from nakadi.engines.kinesis.envelopes import Envelope

NOW = 1_795_262_400_123_456


def test_the_layout_is_frozen():
    """The bytes of a record never change, because records that were written years ago still have to be read."""
    now = "4052a319c8600600"
    assert envelopes.pack_frame(3, NOW, b"frame").hex() == f"6e6b010003000000{now}" + b"frame".hex()
    assert envelopes.pack_seal(NOW).hex() == f"6e6b030000000000{now}"
    assert [each.hex() for each in envelopes.pack_parts(3, NOW, b"frame", b"12345678", 31)] == [
        f"6e6b020003000000{now}" + b"12345678".hex() + "00000200" + b"fra".hex(),
        f"6e6b020003000000{now}" + b"12345678".hex() + "01000200" + b"me".hex(),
    ]


@given(st.binary(max_size=200), st.integers(30, 60))
def test_a_frame_in_parts_comes_back_whole(frame, most):
    """No part of a frame is longer than requested, and together the parts are the frame."""
    pieces = envelopes.pack_parts(2, NOW, frame or b"x", b"12345678", most)
    found = [envelopes.parse_envelope(piece) for piece in pieces]
    assert all(len(piece) <= most for piece in pieces)
    assert b"".join(each.frame for each in found) == (frame or b"x")
    assert [(each.part_number, each.part_count, each.event_count) for each in found] == [
        (number, len(pieces), 2) for number in range(len(pieces))
    ]


def test_a_whole_frame_comes_back():
    """A record states how many events it holds, and when they were stored."""
    assert envelopes.parse_envelope(envelopes.pack_frame(3, NOW, b"frame")) == Envelope(
        envelopes.WHOLE_FRAME, 3, NOW, b"frame"
    )


@pytest.mark.parametrize("data", [b"", b"n", b"nk", b"nk\x01" + bytes(12), b"xx" + bytes(30), b"nk\x09" + bytes(30)])
def test_what_does_not_begin_like_a_record_is_none(data):
    """Bytes that other programs wrote are recognized as foreign, however short they are."""
    assert envelopes.parse_envelope(data) is None


@given(st.binary(max_size=64))
def test_no_bytes_do_harm(data):
    """Foreign records in the stream do no harm, whatever they contain."""
    for each in (data, b"nk" + data, b"nk\x02\x00" + data):
        found = envelopes.parse_envelope(each)
        assert found is None or found.kind in envelopes.ENVELOPE_KINDS


def test_a_frame_that_is_too_long_is_refused():
    """The number of records of an append is limited."""
    with pytest.raises(ValueError, match="too long"):
        envelopes.pack_parts(1, NOW, bytes(envelopes.MAX_PARTS + 1), b"12345678", envelopes.MAX_HEADER_BYTES + 1)
