"""The lines of a stream, assembled from the chunks that arrive."""

from __future__ import annotations


class LineSplitter:
    """Splits at `\\n` and nowhere else: JSON texts may contain U+2028, U+2029 and U+0085, at which `splitlines` splits.

    The text after the last `\\n` waits for the next chunk. If the connection breaks within a line, its beginning stays
    here, so a truncated line never counts as complete.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without their ends and without empty ones."""
        first, *others = chunk.split(b"\n")
        self._parts.append(first)
        if not others:
            return []
        lines = [b"".join(self._parts), *others[:-1]]
        self._parts = [others[-1]]
        return [line for line in lines if line and not line.isspace()]

    def end(self) -> list[bytes]:
        """Return the text after the last line, when the broker ended the stream: a Problem may have no line feed."""
        rest = b"".join(self._parts)
        return [rest] if rest and not rest.isspace() else []
