"""A client's requests to its open stream: to end now, and to allow more time for a commit.

Only the process that serves a stream can do either, but any process may receive the request. So the request is written
into the session's entry in the assignment. The session finds the request there, carries it out, and answers in the same
place: it leaves the assignment, or grants the extension. The response is sent when the effect is visible.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime

from msgspec import Struct

from nakadi.auth.permissions import Permissions
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import Invalid, NotFound, StillRunning
from nakadi.model.subscription import Assignment
from nakadi.subscriptions.api import assignments
from nakadi.subscriptions.api.access import require_reader
from nakadi.subscriptions.api.offsets import DEAD_SESSION_CHECK_INTERVAL_SECONDS, ResetExecution
from nakadi.subscriptions.api.repository import Subscriptions

_UUID_PATTERN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)

# A dead process is detected within the time of its lease; a living one notices the request within a second or two.
MAX_WAIT_SECONDS = 15.0

NOT_ENDED_MESSAGE = "The stream {} has not ended yet; repeat the request to learn when it has"
NOT_EXTENDED_MESSAGE = "The stream {} has not confirmed the extension yet; repeat the request"


class OpenStreams(Struct, frozen=True, kw_only=True):
    """`max_wait_seconds` is how long a request may wait for the stream; None leaves it to `MAX_WAIT_SECONDS`."""

    subscription_repository: Subscriptions
    permissions: Permissions
    execution: ResetExecution
    max_wait_seconds: float | None = None

    def leave(self, subscription_id: str, stream_id: str, subject: Subject) -> None:
        """End a stream, and return when its partitions are free for other streams. Does nothing if the stream has
        ended.

        Raises `StillRunning` if the stream has not ended in time.
        """
        self._require_reader(subscription_id, stream_id, subject)
        self.execution.change_assignment(subscription_id, lambda old: assignments.with_session_leaving(old, stream_id))
        self._wait_until(
            lambda found: found.session(stream_id) is None, subscription_id, NOT_ENDED_MESSAGE.format(stream_id)
        )

    def extend(self, subscription_id: str, stream_id: str, subject: Subject) -> datetime:
        """Give a client more time to commit the events that it received; return the moment at which this time ends.

        Raises `NotFound` if the stream has ended, and `StillRunning` if it has not answered in time.
        """
        self._require_reader(subscription_id, stream_id, subject)
        requested = self.execution.change_assignment(
            subscription_id, lambda old: assignments.with_extension_requested(old, stream_id)
        ).session(stream_id)

        def is_answered(found: Assignment) -> bool:
            session = found.session(stream_id)
            return session is None or requested is None or session.extensions_granted >= requested.extensions_requested

        found = self._wait_until(is_answered, subscription_id, NOT_EXTENDED_MESSAGE.format(stream_id))
        session = found.session(stream_id)
        if session is None or session.commit_by is None:
            raise NotFound(session_not_found_message(found, stream_id))
        return session.commit_by

    def _require_reader(self, subscription_id: str, stream_id: str, subject: Subject) -> None:
        require_reader(self.subscription_repository, self.permissions, subscription_id, subject)
        check_stream_id(stream_id)

    def _wait_until(self, done: Callable[[Assignment], bool], subscription_id: str, late: str) -> Assignment:
        """Wait until `done` is true for the assignment, and return the assignment. Meanwhile, sessions whose process
        has died are removed.
        """
        news = threading.Event()
        clock, coordination = self.execution.clock, self.execution.coordination
        end = clock.monotonic() + min(MAX_WAIT_SECONDS, self.max_wait_seconds or MAX_WAIT_SECONDS)
        with ExitStack() as watch:
            # Listen before the first read, so that every later change is reported and read.
            watch.callback(coordination.add_change_listener(subscription_id, lambda _: news.set()))
            while not done(found := self.execution.try_to_execute(subscription_id)):
                if clock.monotonic() >= end:
                    raise StillRunning(late)
                news.wait(DEAD_SESSION_CHECK_INTERVAL_SECONDS)
                news.clear()
        return found


def check_stream_id(stream_id: str) -> None:
    if not _UUID_PATTERN.fullmatch(stream_id):
        raise Invalid(f"Stream id has to be valid UUID, but `{stream_id} was provided")


def session_not_found_message(assignment: Assignment, stream_id: str) -> str:
    """The message that a session does not exist, and the reason if the assignment records it."""
    message = f"Session with stream id {stream_id} not found"
    known = next((each for each in assignment.timed_out_sessions if each.id == stream_id), None)
    if known is None:
        return message
    at = known.ended_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{message}: its commit timeout of {known.commit_timeout:g} seconds had passed at {at}"
