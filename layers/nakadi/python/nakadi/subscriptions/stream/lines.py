"""Lines: the bytes of a subscription's stream, in the two forms that clients can ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

import orjson

from nakadi.streaming.lines import RETRY_MILLISECONDS
from nakadi.subscriptions.stream.actions import SendBatch, SessionLine

NewToken = Callable[[], str]


class SubscriptionFormat(Protocol):
    content_type: str

    def opening(self, stream_id: str) -> bytes:
        """What is sent before everything else."""

    def line(self, line: SessionLine) -> bytes: ...


class JsonSubscriptionFormat:
    """One JSON object a line."""

    content_type = "application/x-json-stream"

    def __init__(self, new_token: NewToken = lambda: str(uuid4())) -> None:
        self._new_token = new_token

    def opening(self, stream_id: str) -> bytes:  # noqa: ARG002  # clients find it in the headers
        return b""

    def line(self, line: SessionLine) -> bytes:
        info = b',"info":%s' % orjson.dumps({"debug": line.info}) if line.info else b""
        events = b""
        if isinstance(line, SendBatch):
            runs = line.runs
            values = runs[0].values if len(runs) == 1 else [value for run in runs for value in run.values]
            events = b',"events":[%s]' % b",".join(values)
        place = line.place
        # Names of event types have letters, digits, dots, dashes and underscores: nothing here needs escaping.
        cursor = (
            f'{{"partition":"{place.partition}","offset":"{line.position}",'
            f'"event_type":"{place.event_type}","cursor_token":"{self._new_token()}"}}'
        ).encode()
        return b'{"cursor":%s%s%s}\n' % (cursor, events, info)


class EventSubscriptionFormat:
    """Server-sent events, as browsers read them: one event a batch.

    An event source does not show headers, so the first event has the id that is needed for commits. Going on after a
    break needs no id of the last event: a subscription knows where it is. A keep-alive without information is a
    comment.
    """

    content_type = "text/event-stream"

    def __init__(self) -> None:
        self._json = JsonSubscriptionFormat()

    def opening(self, stream_id: str) -> bytes:
        return b"retry: %d\nevent: stream\ndata: %s\n\n" % (RETRY_MILLISECONDS, orjson.dumps({"stream_id": stream_id}))

    def line(self, line: SessionLine) -> bytes:
        if isinstance(line, SendBatch) or line.info:
            return b"data: %s\n" % self._json.line(line)
        return b": still here\n\n"
