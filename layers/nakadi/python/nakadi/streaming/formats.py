"""The lines of a stream of an event type, in two of the forms that clients can ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nakadi.model.event_type import Position
from nakadi.streaming.chunks import escape_line_separators, joined_json
from nakadi.streaming.session import SendEvents, SendStreamKeepAlive

# The time that browsers wait before they open a stream again, in milliseconds.
RETRY_MILLISECONDS = 3000


class StreamFormat(Protocol):
    """The format of one stream. A format may have state, so each stream has its own."""

    content_type: str

    def stream_opening(self) -> bytes:
        """The bytes that a stream begins with."""

    def encode_batch(self, batch: SendEvents) -> bytes: ...

    def encode_keep_alive(self, keep_alive: SendStreamKeepAlive) -> bytes: ...

    def encode_problem(self, problem: bytes) -> bytes:
        """A Problem in a response that has already begun; it is sent last."""


class JsonStreamFormat:
    """One JSON object per line."""

    content_type = "application/x-json-stream"

    def stream_opening(self) -> bytes:
        return b""

    def encode_batch(self, batch: SendEvents) -> bytes:
        return batch_line(batch)

    def encode_keep_alive(self, keep_alive: SendStreamKeepAlive) -> bytes:
        return keep_alive_object(keep_alive) + b"\n"

    def encode_problem(self, problem: bytes) -> bytes:
        return escape_line_separators(problem) + b"\n"


class EventStreamFormat:
    """Server-sent events, as browsers read them: one for each batch, whose id is a cursors header from which to
    continue.

    The id names every partition of the stream, even if none of its events has been sent yet, because a client that
    returns with the id gets only the partitions that it names. A keep-alive is an id without data: a browser remembers
    the id and raises no event.
    """

    content_type = "text/event-stream"

    def __init__(self, starts: Mapping[str, Position]) -> None:
        self._positions = dict(starts)

    def stream_opening(self) -> bytes:
        return b"retry: %d\n%s\n\n" % (RETRY_MILLISECONDS, self._event_id_line())

    def encode_batch(self, batch: SendEvents) -> bytes:
        self._positions[batch.partition] = batch.position
        return b"%s\ndata: %s\n" % (self._event_id_line(), batch_line(batch))

    def encode_keep_alive(self, keep_alive: SendStreamKeepAlive) -> bytes:
        self._positions[keep_alive.partition] = keep_alive.position
        return self._event_id_line() + b"\n\n"

    def encode_problem(self, problem: bytes) -> bytes:
        return b"event: problem\ndata: %s\n\n" % escape_line_separators(problem)

    def _event_id_line(self) -> bytes:
        cursors = ",".join(_cursor_json(partition, position) for partition, position in self._positions.items())
        return f"id: [{cursors}]".encode()


def batch_line(batch: SendEvents) -> bytes:
    """A batch as a JSON object and a line break. The line of a batch with a single run is made once for all streams
    that send the same batch.
    """
    head = f'{{"cursor":{_cursor_json(batch.partition, batch.position)},"events":['.encode()
    runs = batch.runs
    if len(runs) > 1:
        return joined_json(head, runs, b"]}\n")
    run = runs[0]
    return run.chunk.cached_bytes(run.first, run.last, lambda: joined_json(head, runs, b"]}\n"))


def keep_alive_object(keep_alive: SendStreamKeepAlive) -> bytes:
    return f'{{"cursor":{_cursor_json(keep_alive.partition, keep_alive.position)}}}'.encode()


def _cursor_json(partition: str, position: Position) -> str:
    # Partitions are numbers, and positions have only hexadecimal digits and hyphens, so nothing needs escaping.
    return f'{{"partition":"{partition}","offset":"{position}"}}'
