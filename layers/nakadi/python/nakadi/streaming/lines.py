"""Lines: the bytes of a stream, in the two forms that clients can ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from nakadi.model.timeline import Position
from nakadi.streaming.session import SendEvents, SendStreamKeepAlive

# What browsers wait before they open a stream again, in milliseconds.
RETRY_MILLISECONDS = 3000


class StreamFormat(Protocol):
    """One stream's form. A form may remember what it has sent, so that each stream has its own."""

    content_type: str

    def opening(self) -> bytes:
        """What is sent before everything else."""

    def batch(self, batch: SendEvents) -> bytes: ...

    def keep_alive(self, keep_alive: SendStreamKeepAlive) -> bytes: ...

    def problem(self, problem: bytes) -> bytes:
        """A Problem in a response that has long begun; the last thing sent."""


class JsonStreamFormat:
    """One JSON object a line."""

    content_type = "application/x-json-stream"

    def __init__(self, starts: Mapping[str, Position]) -> None:
        """Takes what every form takes; here each line says all there is to say."""

    def opening(self) -> bytes:
        return b""

    def batch(self, batch: SendEvents) -> bytes:
        return batch_line(batch)

    def keep_alive(self, keep_alive: SendStreamKeepAlive) -> bytes:
        return keep_alive_object(keep_alive) + b"\n"

    def problem(self, problem: bytes) -> bytes:
        return problem + b"\n"


class EventStreamFormat:
    """Server-sent events, as browsers read them: one event a batch, whose id is a cursors header to go on from.

    The id names every partition of the stream, also those that nothing came from yet, because a client that comes back
    with it gets the partitions in it and no others. A keep-alive is an id without data: a browser remembers the id and
    raises no event.
    """

    content_type = "text/event-stream"

    def __init__(self, starts: Mapping[str, Position]) -> None:
        self._positions = dict(starts)

    def opening(self) -> bytes:
        return b"retry: %d\n%s\n\n" % (RETRY_MILLISECONDS, self._id())

    def batch(self, batch: SendEvents) -> bytes:
        self._positions[batch.partition] = batch.position
        return b"%s\ndata: %s\n" % (self._id(), batch_line(batch))

    def keep_alive(self, keep_alive: SendStreamKeepAlive) -> bytes:
        self._positions[keep_alive.partition] = keep_alive.position
        return self._id() + b"\n\n"

    def problem(self, problem: bytes) -> bytes:
        return b"event: problem\ndata: %s\n\n" % problem

    def _id(self) -> bytes:
        cursors = ",".join(_cursor(partition, position) for partition, position in self._positions.items())
        return f"id: [{cursors}]".encode()


def batch_line(batch: SendEvents) -> bytes:
    """A batch as a JSON object and a line break. Of a single run it is made once for all streams that cut there."""
    head = f'{{"cursor":{_cursor(batch.partition, batch.position)},"events":['.encode()
    if len(batch.runs) == 1:
        return batch.runs[0].serialised(lambda values: _in_one_copy(head, values))
    return _in_one_copy(head, [value for run in batch.runs for value in run.values])


def _in_one_copy(head: bytes, values: Sequence[bytes]) -> bytes:
    """Events are most of the bytes of a stream: head and tail go to the first and the last before they are joined."""
    if len(values) == 1:
        return b"%s%s]}\n" % (head, values[0])
    return b",".join([head + values[0], *values[1:-1], values[-1] + b"]}\n"])


def keep_alive_object(keep_alive: SendStreamKeepAlive) -> bytes:
    return f'{{"cursor":{_cursor(keep_alive.partition, keep_alive.position)}}}'.encode()


def _cursor(partition: str, position: Position) -> str:
    # Partitions are numbers, and positions hex and digits: nothing in here needs escaping.
    return f'{{"partition":"{partition}","offset":"{position}"}}'
