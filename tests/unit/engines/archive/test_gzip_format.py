"""Gzip members are decompressed whole or in pieces."""

import random

import pytest

from nakadi.engines.archive.gzip_format import BadArchive, decompress_members, decompress_pieces, new_compressor


def gzip_member(text):
    packer = new_compressor()
    return packer.compress(text) + packer.flush()


TEXTS = [b"a line\n" * 5000, b"", bytes(random.Random(1).randbytes(3000)), b"x" * 100_000]
CONTENT = b"".join(map(gzip_member, TEXTS))


@pytest.mark.parametrize("most", [100, 4096, 1 << 20])
def test_pieces_are_small_and_all_there_is(most):
    """The pieces of a member are small and complete, however long the member is, and wherever it ends within the
    bytes that are read.
    """
    pieces = list(decompress_pieces(CONTENT, most))
    assert b"".join(pieces) == b"".join(decompress_members(CONTENT)) == b"".join(TEXTS)
    assert max(map(len, pieces)) <= most


@pytest.mark.parametrize("content", [CONTENT[:-9], CONTENT[:40], b"nothing", gzip_member(b"a") + b"behind", b""])
def test_pieces_of_what_is_not_whole_are_refused(content):
    """Bytes that are cut off, empty, or not gzip are refused, even after a whole member."""
    with pytest.raises(BadArchive):
        list(decompress_pieces(content, 100))
