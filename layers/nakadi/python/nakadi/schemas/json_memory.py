"""What JSON takes in memory once it is parsed: five to fifty times its text, estimated from the text's symbols."""

from __future__ import annotations

import re

Text = bytes | memoryview

WINDOW = 1024 * 1024

# What the parsed form takes for each of these symbols; measured, with what the parser itself needs meanwhile.
OBJECT = 200
MEMORY_OF = ((b"{", OBJECT), (b"[", 90), (b",", 60), (b":", 80))

_STRING_OR_NOT = re.compile(rb'"(?:[^"\\]|\\.)*+"|([^"]++)', re.DOTALL)


def parsed_memory(text: Text) -> int:
    """About how many bytes the values of the text take, at most, beside the characters of strings."""
    windows = (bytes(text[at : at + WINDOW]) for at in range(0, len(text), WINDOW))
    return sum(window.count(symbol) * each for window in windows for symbol, each in MEMORY_OF)


def exceeds(text: Text, most: int) -> bool:
    """Whether the values of the text take more than so many bytes. Symbols in strings are no values."""
    return parsed_memory(text) > most and parsed_memory(_without_strings(text)) > most


def _without_strings(text: Text) -> bytes:
    return b"".join(match[1] for match in _STRING_OR_NOT.finditer(text) if match[1])
