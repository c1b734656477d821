"""Frames: several records in one sequence of bytes."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from nakadi.engines.common import frames
from nakadi.model.authorization import Attribute
from nakadi.model.events import Record, RecordLines

texts = st.none() | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.none() | st.binary(min_size=1, max_size=40).map(lambda value: value.replace(b"\n", b" "))
records = st.builds(
    Record,
    values,
    texts,
    st.none() | st.builds(Attribute, st.text(alphabet="abé", max_size=3), st.text(alphabet="abé", max_size=3)),
    texts,
)


@given(st.lists(st.none() | records, max_size=30))
def test_a_frame_holds_what_was_put_in(given_records):
    """Any records, including tombstones, are read from a frame as they were written. (P137)"""
    assert frames.decode(frames.encode(given_records)) == given_records


@given(st.lists(st.tuples(st.integers(), st.text(max_size=5)), min_size=1, max_size=30), st.booleans())
def test_lines_make_the_same_frame_as_their_records(numbered_keys, has_keys):
    """Records make the same bytes, whether they come as lines or one by one. (P137)"""
    text = b"\n".join([b"%d" % number for number, _ in numbered_keys])
    lines = RecordLines(text, len(numbered_keys), [key for _, key in numbered_keys] if has_keys else None)
    assert frames.encode(lines) == frames.encode(list(lines))
    assert frames.decode(frames.encode(lines)) == [
        Record(b"%d" % number, key if has_keys else None) for number, key in numbered_keys
    ]


@given(st.lists(st.none() | records, max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_part_of_a_frame_can_be_read(given_records, start, stop):
    """Reading a part of a frame returns the same events as reading the whole frame."""
    frame = frames.encode(given_records)
    assert frames.decode(frame, slice(start, stop)) == given_records[start:stop]


@given(st.lists(st.none() | records, max_size=30))
def test_an_outline_reports_keys_and_tombstones(given_records):
    """The outline of a frame has what compaction needs to know about each offset."""
    expected = [None if record is None else (record.key, record.value is None) for record in given_records]
    frame = frames.encode(given_records)
    assert frames.keys_and_tombstones(frame) == expected
    assert frames.has_metadata(frame) or None not in given_records


def test_many_events_are_compressed():
    """Similar events take a fraction of their size; a batch that would not shrink is stored unchanged."""
    alike = [Record(b'{"name":"somebody","number":%d}' % number) for number in range(1000)]
    assert len(frames.encode(alike)) < sum(len(record.value) for record in alike) / 4
    assert frames.decode(frames.encode(alike)) == alike
    few = [Record(b"1"), Record(b"2")]
    assert len(frames.encode(few)) == frames.HEADER_FORMAT.size + 3


@pytest.mark.parametrize("value", [b"1\n2", b"\n"])
def test_a_line_break_is_refused(value):
    """An event with a line break is refused, because it would look like two events."""
    with pytest.raises(ValueError, match="line break"):
        frames.encode([Record(value)])


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "header"),
        (b"nf", "header"),
        (b"xx" + frames.encode([Record(b"1")])[2:], "version"),
        (b"nf\x02" + frames.encode([Record(b"1")])[3:], "version"),
        (frames.encode([Record(b"1"), Record(b"2")]).replace(b"\n", b" "), "2 records has 1 lines"),
        (frames.encode([Record(b"1" * 9000)])[:-5], "damaged"),
    ],
)
def test_what_is_no_frame_is_reported(frame, why):
    """Bytes that are not a frame, or a damaged frame, are refused with the reason."""
    with pytest.raises(frames.BadFrame, match=why):
        frames.decode(frame)
    with pytest.raises(frames.BadFrame, match=why):
        frames.text_and_ends(frame)


@pytest.mark.parametrize("count", [0, 1, 2, 200])
def test_the_text_of_plain_events_comes_with_the_end_of_each(count):
    """Plain events are read as one text with the end of each event; cutting the text at these ends returns the events
    that were packed.
    """
    records = [Record(b'{"number":%d}' % number) for number in range(count)]
    frame = frames.encode(records)
    text, ends = frames.text_and_ends(frame)
    begins = [0, *(end + 1 for end in ends)]
    assert not frames.has_metadata(frame)
    assert text == b",".join(record.value for record in records)
    assert [Record(text[begin:end]) for begin, end in zip(begins, ends, strict=False)] == records
