"""Lines end at a line feed, and nowhere else."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nakadi_client.lines import LineSplitter

TEXTS = st.lists(st.text(alphabet="a\u2028\u2029\u0085\r\x0b é", min_size=1), max_size=6)


@given(texts=TEXTS, rest=st.text(alphabet="ab"), cuts=st.lists(st.integers(0, 60)))
def test_lines_are_the_same_however_they_arrive(texts, rest, cuts):
    """Chunks may end anywhere, even within a character; separators of other formats are part of a line."""
    whole = b"".join(text.encode() + b"\n" for text in texts) + rest.encode()
    splitter = LineSplitter()
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    lines = [line for begin, end in pairwise(places) for line in splitter.feed(whole[begin:end])]
    # U+2028 does not separate lines, and blank lines do not count.
    assert lines == [encoded for text in texts if not (encoded := text.encode()).isspace()]


def test_a_torn_line_is_no_line():
    """Text after the last line feed of a broken stream does not count as a line."""
    splitter = LineSplitter()
    assert splitter.feed(b'{"a":1}\n{"b"') == [b'{"a":1}']
    assert splitter.feed(b":2") == []


def test_what_ends_a_stream_may_have_no_line_feed():
    """A broker may end a stream with a Problem without a line feed; blanks do not count as a line."""
    splitter = LineSplitter()
    splitter.feed(b'{"a":1}\n{"title":')
    assert splitter.feed(b'"Gone"}') == []
    assert splitter.end() == [b'{"title":"Gone"}']
    splitter = LineSplitter()
    splitter.feed(b"{}\n \r")
    assert splitter.end() == []
