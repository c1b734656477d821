"""The memory needed for reading a body."""

import pytest

from nakadi.publishing import batch as batches
from nakadi.publishing import memory, validation
from nakadi.publishing.memory import estimate_batch_memory, is_parsed_at_once
from nakadi.publishing.validation import read_batch
from tests.support.traced_memory import trace_memory

SHAPES = {
    "empty objects": b'{"a":[' + b",".join([b"{}"] * 5_000) + b"]}",
    "numbers": b'{"a":[' + b",".join([b"0.5"] * 20_000) + b"]}",
    "names": b"{" + b",".join(b'"%x":1' % number for number in range(6_000)) + b"}",
    "letters": ('{"a":"' + "a" * 100_000 + '😀"}').encode(),
    "blanks": b'{ "a" :' + b" " * 100_000 + b"1 }",
    "small events": b",".join([b'{"a":{}}'] * 10),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_body_takes_a_few_times_its_size_in_memory(shape, monkeypatch):
    """Reading a long body takes no more than its size in addition, and a constant amount for one piece."""
    for module in (memory, validation):
        monkeypatch.setattr(module, "SHORT_BODY_BYTES", 32 * 1024)
    for module in (batches, memory, validation):
        monkeypatch.setattr(module, "MAX_BATCH_PIECE_BYTES", 128 * 1024)
    for module in (batches, memory):
        monkeypatch.setattr(module, "MAX_BATCH_PIECE_MEMORY_BYTES", 1024 * 1024)
    event = SHAPES[shape]
    # Without commas between them, the events are found in the slow way.
    for between in (b",", b" "):
        body = b"[" + between.join([event] * min(900, 500_000 // len(event))) + b"]"

        def read_in_pieces(body=body):
            for piece in read_batch(body).in_pieces():
                list(map(bytes, batches.ARRAY_DECODER.decode(piece.text)))

        peak = trace_memory(read_in_pieces).peak
        assert peak < len(body) + 6_000_000
        assert peak < estimate_batch_memory(body)


def test_which_bodies_are_parsed_at_once():
    """All short bodies are parsed at once, and so are longer ones, up to the size of a piece, if their events take
    no more memory than a piece may.
    """
    short, few, many = memory.SHORT_BODY_BYTES, b'{"a":"%b"}' % (b"x" * 1000), b"[0,0,0],"
    assert is_parsed_at_once(b"{}," * (short // 3))
    assert is_parsed_at_once(few * (2 * short // len(few)))
    assert not is_parsed_at_once(many * (2 * short // len(many)) * 4)
    assert not is_parsed_at_once(few * (2 * batches.MAX_BATCH_PIECE_BYTES // len(few)))
