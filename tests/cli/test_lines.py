"""Lines of streams, as the command line reads them."""

import json

import httpx
import pytest

from nakadi_cli.api import read_lines

# What `str.splitlines` takes for the end of a line, and JSON does not.
SEPARATORS = "\u2028 \u2029 \u0085"


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_only_a_line_feed_ends_a_line(size):
    """A line is read whole, whatever characters it has and wherever its bytes are cut; an empty one is none."""
    lines = [json.dumps({"a": SEPARATORS + "é"}, ensure_ascii=False), "", '{"b":1}', "the rest"]
    content = "\n".join(lines).encode()
    answer = httpx.Response(200, content=(content[at : at + size] for at in range(0, len(content), size)))

    assert list(read_lines(answer)) == [line for line in lines if line]
