"""The decisions of a consumer, without any input or output: when to open a stream, which batch comes next, what to
commit.

Three parties ask the core for their next action, each in its own loop, and report the result:

* the reader of the stream: `connection_step`, then `handle_opened_stream`, `handle_line`, `handle_closed_stream`
  or `handle_refusal`
* the committer: `commit_step`, then `handle_commit_answer`, `handle_extend_answer`, `handle_committed_offsets` or
  `handle_leave_answer`
* the party that works on events: `work_step`, then `finish_batch`

The core is not thread-safe: drivers lock it. `now` is a clock that only goes forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from math import inf
from typing import Any, Literal

import msgspec

from nakadi_client.answers import Answer
from nakadi_client.batches import Batch
from nakadi_client.decoding import Cursor, Decoded, LineDecoder
from nakadi_client.errors import EventsUnreadable, NakadiError, NoAnswer
from nakadi_client.pauses import Pauses

Place = tuple[str, str]

# Batches finished within this time of the last commit share the next: a commit costs as much as reading 500 events.
_SHARED_COMMIT_SECONDS = 0.05
# Fractions of a stream's commit timeout, which must not expire while a commit or an `Extend` is on its way.
_COMMIT_PART, _LIFE_PART, _GLANCE_PART, _LOOK_AGAIN_PART = 1 / 3, 0.4, 0.2, 0.02
# A new stream waits this long for the last commits of the previous one, which would otherwise still hold partitions.
_SECONDS_FOR_LAST_COMMITS = 2.0
# A partition without a line for this many flush timeouts, and some seconds, has moved to another stream.
_SILENT_FLUSHES, _SILENT_SECONDS = 3, 5.0
# Without `follow`, a stream also ends after this many empty lines of each partition, one a second. The broker reports
# events that it cannot read in less time.
_EMPTY_LINES_AT_END = 3
# The pauses while no slot is free, because another stream has to end first.
_TAKEN = Pauses(first=0.5, longest=5.0)
_TRY_AGAIN = (408, 409, 429)
_MANY_REFUSALS = 3
# A broker that can extend streams reports with this text that one has ended. Other brokers do not know the path.
_NO_SESSION = b"Session with stream id"


class CommitPolicy(msgspec.Struct, frozen=True):
    """When finished batches are committed: after this number of events or seconds, whichever comes first.

    Without either limit, a batch is committed as soon as it is done; batches that are done within 0.05 s of a commit
    share the next one. With `by_hand`, only batches that were marked with `done()` count; otherwise each counts when
    the application requests the next. Each commit is in time for the stream's `commit_timeout`.
    """

    events: int | None = None
    seconds: float | None = None
    by_hand: bool = False


EACH_BATCH = CommitPolicy()
BY_HAND = CommitPolicy(by_hand=True)


class StreamOptions(msgspec.Struct, frozen=True):
    """Parameters of the stream, with the names of the API. The window is wide, so that reading does not wait for each
    commit.
    """

    batch_limit: int = 500
    max_uncommitted_events: int = 5_000
    batch_flush_timeout: int = 1
    batch_timespan: int = 0
    commit_timeout: int = 60
    stream_timeout: int = 0
    stream_limit: int = 0
    stream_keep_alive_limit: int = 0
    on_disconnect: Literal["wait", "release"] | None = None
    partitions: tuple[Mapping[str, str], ...] = ()

    def parameters(self) -> dict[str, Any]:
        """Return the parameters for the request, without those that are zero, None or empty."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


class Patience(msgspec.Struct, frozen=True):
    """Seconds after which a consumer or a reader that receives nothing gives up, and raises the last error.

    without_answer  The broker cannot be reached, fails, breaks its streams, or cannot read the next events of a
                    partition. The default is never to give up.
    without_slot    Other consumers hold all partitions (409).
    """

    without_answer: float = inf
    without_slot: float = inf


class State(Enum):
    """The state of a stream."""

    CLOSED = auto()
    OPENING = auto()
    OPEN = auto()
    OVER = auto()


class Open(msgspec.Struct, frozen=True):
    """Open a stream with these parameters."""

    options: StreamOptions


class Count(msgspec.Struct, frozen=True):
    """Ask how many events of the subscription are not committed."""


class Find(msgspec.Struct, frozen=True):
    """Ask for the newest offsets of an event type or, if it is None, for the event types of the subscription."""

    event_type: str | None = None


class Commit(msgspec.Struct, frozen=True):
    """Commit these cursors. `is_progress` covers a part of a batch only."""

    stream_id: str
    cursors: tuple[Cursor, ...]
    is_progress: bool = False


class Extend(msgspec.Struct, frozen=True):
    """Tell the broker that work on this stream's events continues."""

    stream_id: str


class Look(msgspec.Struct, frozen=True):
    """Ask which offsets of the subscription are committed."""

    stream_id: str


class Leave(msgspec.Struct, frozen=True):
    """Release the partitions of this stream."""

    stream_id: str


Action = Commit | Extend | Look | Leave


class Rebalance(msgspec.Struct, frozen=True):
    """New partitions, and lost ones; `assigned` are the partitions that the stream has now."""

    gained: frozenset[Place]
    lost: frozenset[Place]
    assigned: frozenset[Place]


class Trouble(msgspec.Struct, frozen=True):
    """A failed action, its number of consecutive failures, and the seconds until the next attempt. Applications can
    show it.
    """

    error: NakadiError
    failures: int
    seconds: float


class Wait(msgspec.Struct, frozen=True):
    """Do nothing until this moment or the next change; if `until` is None, until the next change."""

    until: float | None = None


class End(msgspec.Struct, frozen=True):
    """No work is left. `error` is the fault that ended the consumer, or None after a call of `stop`."""

    error: NakadiError | None = None


class Health(msgspec.Struct, frozen=True):
    """Figures for a health check and for metrics. The members `seconds_…` are the times since the last line came, and
    since the application got the batch that it is working on; None if there is none.
    """

    state: str
    partitions: int
    events_handled: int
    events_committed: int
    batches_handled: int
    batches_waiting: int
    commits: int
    commits_lost: int
    reconnects: int
    seconds_since_line: float | None
    seconds_in_hand: float | None


class _Handled(msgspec.Struct):
    """Finished batches: the last one of each partition, and their total size."""

    last: dict[Place, Batch[Any]] = {}
    events: int = 0
    batches: int = 0
    since: float = inf

    def add(self, batch: Batch[Any], now: float) -> None:
        earlier = self.last.get(batch.cursor.place)
        if earlier is None or earlier.number < batch.number:
            self.last[batch.cursor.place] = batch
        self.events += len(batch)
        self.batches += 1
        self.since = min(self.since, now)

    def take_back(self, earlier: _Handled) -> None:
        """Add cursors whose commit failed; the later batch of a partition covers the earlier one."""
        self.last = earlier.last | self.last
        self.events += earlier.events
        self.batches += earlier.batches
        self.since = min(self.since, earlier.since)


class _Session(msgspec.Struct):
    """A stream that the broker knows; a broken stream still accepts commits for a while."""

    stream_id: str
    handled: _Handled = msgspec.field(default_factory=_Handled)
    committing: _Handled = msgspec.field(default_factory=_Handled)
    in_hand: dict[int, Batch[Any]] = {}
    # The number of received batches that are not committed, and when the commit timeout for the next commit began.
    uncommitted: int = 0
    clock_since: float = inf
    closed_at: float = inf
    ended_by_broker: bool = False
    positions: dict[Place, str] = {}
    seen: dict[Place, float] = {}

    @property
    def is_to_be_settled(self) -> bool:
        """Whether an ended stream still needs a commit or a `Leave`, and no work on its events is in progress."""
        is_done_with = self.ended_by_broker and not self.handled.last and not self.committing.last
        return not self.in_hand and not is_done_with


class ConsumerCore:
    """The successive streams of one subscription, until `limit` events are handed out. Without `follow`, it ends after
    the events that existed at the beginning, or when no more events wait: the last events may be ones that no stream
    delivers, or another stream may have their partition.
    """

    def __init__(
        self,
        options: StreamOptions,
        commit: CommitPolicy,
        draw: Callable[[], float],
        model: Any = None,
        pauses: Pauses | None = None,
        *,
        limit: int | None = None,
        follow: bool = True,
        patience: Patience = Patience(),  # noqa: B008  # it is frozen
    ) -> None:
        self.options: StreamOptions = options
        self._limit = inf if limit is None else limit
        self._handed_out = 0
        self._follow = follow
        self._has_to_count = False
        # The event types whose ends are not known yet; None before they are known, and empty if nothing is to be found.
        self._unmeasured: list[str] | None = [] if follow else None
        # The last offset that each partition had at the beginning, for partitions that are not finished up to it.
        self._ends: dict[Place, str] = {}
        self._patience = patience
        # The start of the present series of failures, and the time since which other consumers have had all slots.
        self._failing_since = self._taken_since = inf
        # The time since which the broker cannot read the next events of partitions.
        self._unreadable_since: dict[Place, float] = {}
        self._trouble: Trouble | None = None
        self._policy = commit
        self._draw = draw
        self._decoder = LineDecoder(model)
        self._pauses = pauses or Pauses()
        self.state: State = State.CLOSED
        self._stopping = False
        self._error: NakadiError | None = None
        self._sessions: dict[str, _Session] = {}
        self._current: _Session | None = None
        self._reopen_at = -inf
        self._failures = 0
        self._refusals = 0
        self._ready: deque[Batch[Any]] = deque()
        self._told: deque[Rebalance] = deque()
        self._numbers = 0
        self._request: Action | None = None
        self._commit_failures = 0
        self._commit_again_at = -inf
        self._committed_at = -inf
        # Whether the broker knows the requests that extend and leave a stream.
        self._extends = True
        self._leaves = True
        self._events = self._events_committed = self._batches = self._commits = self._commits_lost = self._streams = 0
        self._line_at: float | None = None
        self._hand_since: float | None = None

    # The stream -------------------------------------------------------------------------------------------------------

    def connection_step(self, now: float) -> Open | Find | Count | Wait | End:
        """The next action of the party that reads the stream, when none is open."""
        if self._stopping or self._error:
            self.state = State.OVER
            return End(self._error)
        ready_at = max(self._reopen_at, self._last_commits_until(now))
        if now < ready_at:
            return Wait(ready_at)
        if self._unmeasured is None or self._unmeasured:
            return Find(self._unmeasured[0] if self._unmeasured else None)
        if self._has_to_count:
            return Count()
        if self._handed_out >= self._limit:
            return Wait()
        self.state = State.OPENING
        return Open(self._options_of_next())

    def handle_event_types(self, names: Sequence[str]) -> None:
        """Take the names of the subscription's event types; none if the broker does not report them."""
        self._unmeasured = list(names)

    def handle_newest_offsets(self, event_type: str, offsets: Mapping[str, str] | None) -> None:
        """Take the newest offsets of those partitions of an event type that have events. If the broker does not report
        them (None), the consumer ends when no more events wait.
        """
        if offsets is None:
            self._unmeasured, self._ends = [], {}
            return
        assert self._unmeasured is not None
        self._unmeasured.remove(event_type)
        chosen = {(each["event_type"], each["partition"]) for each in self.options.partitions}
        ends = {(event_type, partition): offset for partition, offset in offsets.items()}
        self._ends |= {place: offset for place, offset in ends.items() if not chosen or place in chosen}
        if not self._unmeasured and not self._ends:
            self.stop()

    def handle_uncommitted_count(self, events: int) -> None:
        """Take the number of uncommitted events of the subscription, and stop if there are none."""
        self._has_to_count = False
        if not events:
            self.stop()

    def handle_opened_stream(self, stream_id: str, now: float) -> None:
        """Take the id of a stream that the broker has opened."""
        self.state = State.OPEN
        self._current = self._sessions[stream_id] = _Session(stream_id)
        self._streams += 1
        self._refusals = 0
        self._line_at = now

    def handle_line(self, line: bytes, now: float) -> None:
        """Take a line of the stream. Raises `NakadiError` at a text that is no line, at a Problem, and if the broker
        takes no more commits for the stream; the caller then closes the stream.
        """
        session = self._current
        assert session is not None, "a line came without a stream"
        if session.stream_id not in self._sessions:
            raise NakadiError("The broker takes no more commits for this stream.")
        try:
            decoded = self._decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise NakadiError(f"This is no line of a stream: {error}") from error
        cursor = decoded.line.cursor
        if cursor is None:
            raise decoded.line.end_of_stream()
        self._line_at = now
        self._recover()
        place = cursor.place
        if decoded.line.info and decoded.line.info.get("unreadable"):
            self._handle_unreadable_events(place, str(decoded.line.info.get("debug")), now)
        elif decoded.line.events:
            self._unreadable_since.pop(place, None)
        is_new = place not in session.seen
        session.seen[place] = now
        if is_new:
            self._tell({place}, set())
        if decoded.line.events or decoded.poison:
            self._queue_batch(session, cursor, decoded, now)
        elif not any(each.cursor.place == place for each in (*self._ready, *session.in_hand.values())):
            self._note_end(place, cursor.offset)
        session.positions[place] = cursor.offset
        self._look_for_lost(session, now)

    def _queue_batch(self, session: _Session, cursor: Cursor, decoded: Decoded, now: float) -> None:
        self._numbers += 1
        self._ready.append(
            Batch(
                decoded.line.events or [],
                cursor,
                session.stream_id,
                self._numbers,
                before=session.positions.get(cursor.place),
                poison=decoded.poison,
            )
        )
        if not session.uncommitted:
            session.clock_since = now
        session.uncommitted += 1

    def _handle_unreadable_events(self, place: Place, why: str, now: float) -> None:
        """Note that the broker cannot read the next events of a partition. The stream continues with its other
        partitions, until `patience.without_answer` has passed.
        """
        error = EventsUnreadable(why, partition=place[1])
        since = self._unreadable_since.setdefault(place, now)
        if since == now:
            self._trouble = Trouble(error, 1, 0.0)
        if now - since >= self._patience.without_answer and not self._stopping:
            self._error = error

    def handle_closed_stream(self, now: float, error: NakadiError | None = None) -> None:
        """Note that the stream has ended, or that its connection broke. Events that were not handed out come again
        with the next stream.
        """
        session, self._current = self._current, None
        if session is None:
            return
        self.state = State.CLOSED
        session.closed_at = now
        session.ended_by_broker = error is None
        self._tell(set(), set(session.seen))
        session.uncommitted -= sum(each.stream_id == session.stream_id for each in self._ready)
        self._ready.clear()
        if error is None:
            self._recover()
            self._has_to_count = not self._follow
            self._reopen_at = now
        else:
            # When a broker stops, the streams of many consumers end together; pauses spread their next requests.
            self._pause(error, now)

    def handle_refusal(self, answer: Answer | NoAnswer, now: float) -> None:
        """Take the answer to an action of `connection_step` that failed, such as a stream that was not opened."""
        self.state = State.CLOSED
        if isinstance(answer, NoAnswer):
            self._pause(answer, now)
            return
        refusal = answer.refusal()
        if answer.status == 409:
            self._taken_since = min(self._taken_since, now)
            self._failing_since = inf
            self._wait_after(_TAKEN, refusal, now, answer.retry_after)
            if now - self._taken_since >= self._patience.without_slot and not self._stopping:
                self._error = refusal
            return
        if answer.status < 500 and answer.status not in _TRY_AGAIN:
            # Shortly after a change, a subscription may be unknown to a part of the broker.
            self._refusals += 1
            if self._refusals >= _MANY_REFUSALS:
                self._error = refusal
        self._pause(refusal, now, answer.retry_after)

    # Work -------------------------------------------------------------------------------------------------------------

    def work_step(self, now: float) -> Batch[Any] | Rebalance | Trouble | Wait | End:
        """The next action of the party that works on events."""
        if self._told:
            return self._told.popleft()
        if self._trouble and not self._error and not self._stopping:
            # Only the latest trouble is kept: an application that works for a long time does not need all of them.
            trouble, self._trouble = self._trouble, None
            return trouble
        if self._error:
            return End(self._error)
        if self._stopping or self._handed_out >= self._limit:
            return End()
        if not self._ready:
            return Wait()
        batch = self._ready.popleft()
        self._handed_out += len(batch) + len(batch.poison)
        self._sessions[batch.stream_id].in_hand[batch.number] = batch
        self._hand_since = now
        return batch

    def finish_batch(self, batch: Batch[Any], now: float) -> None:
        """Note that the application has finished a batch, which may now be committed.

        A second call for a batch changes nothing.
        """
        session = self._sessions.get(batch.stream_id)
        if session is None:
            self._hand_since = None
            return
        if session.in_hand.pop(batch.number, None) is None:
            return
        self._events += len(batch)
        self._batches += 1
        self._hand_since = None
        session.handled.add(batch, now)
        self._note_end(batch.cursor.place, batch.cursor.offset)

    def let_go(self) -> None:
        """Forget the batches that the application works on, so that none of them is committed."""
        self._hand_since = None
        for session in self._sessions.values():
            session.in_hand.clear()

    def stop(self) -> None:
        """Hand out nothing more. The application may finish the current batch; finished events will be committed."""
        self._stopping = True
        self._ready.clear()

    def abort(self) -> None:
        """Stop, and commit nothing more."""
        self.stop()
        self._sessions.clear()

    # Commits ----------------------------------------------------------------------------------------------------------

    def commit_step(self, now: float) -> Action | Wait | End:
        """The next action of the party that commits, which sends one request at a time."""
        if self._request is not None:
            return Wait()
        self._forget_dead(now)
        next_at = inf
        for session in list(self._sessions.values()):
            action, at = self._due(session, now)
            if isinstance(action, Leave) and (session.ended_by_broker or not self._leaves):
                self._drop(session.stream_id)
                continue
            at = max(at, self._commit_again_at)
            if action is None or at > now:
                next_at = min(next_at, at)
                continue
            if isinstance(action, Commit) and not action.is_progress:
                session.committing, session.handled = session.handled, _Handled()
            self._request = action
            return action
        is_over = self._stopping or self._error is not None
        if is_over and not self._sessions and self.state is not State.OPEN:
            return End(self._error)
        # Handing out a batch does not wake the committer, but slow work on the batch needs an `Extend` in time.
        latest = now + self.options.commit_timeout * _GLANCE_PART if self._sessions else inf
        return Wait(None if next_at == latest == inf else min(next_at, latest))

    def handle_commit_answer(self, answer: Answer | NoAnswer, now: float) -> None:
        """Take the answer to a commit. If the broker no longer knows a stream, no further commits are sent for it."""
        commit, self._request = self._request, None
        assert isinstance(commit, Commit)
        session = self._sessions.get(commit.stream_id)
        if isinstance(answer, Answer) and answer.status in (200, 204):
            self._commits += 1
            self._commit_failures = 0
            self._committed_at = now
            if session is not None:
                session.clock_since = now
                session.uncommitted -= session.committing.batches
                self._events_committed += session.committing.events
                session.committing = _Handled()
            return
        if isinstance(answer, Answer) and answer.status < 500 and answer.status not in _TRY_AGAIN:
            self._commits_lost += 1
            refusal = answer.refusal()
            if answer.status in (401, 403, 404):
                self._error = refusal
            lost = NakadiError(f"Batches were not committed, so their events come again: {refusal}")
            self._trouble = Trouble(lost, self._commits_lost, 0.0)
            self._drop(commit.stream_id)
            return
        if session is not None:
            session.handled.take_back(session.committing)
            session.committing = _Handled()
        self._commit_failures += 1
        asked = answer.retry_after if isinstance(answer, Answer) else None
        self._commit_again_at = now + self._pauses.after(self._commit_failures, self._draw, asked)

    def handle_extend_answer(self, answer: Answer | NoAnswer, now: float) -> None:
        """Take the answer to `Extend`.

        From then on, a broker that does not know this request gets commits of the finished parts of batches instead.
        """
        extend, self._request = self._request, None
        assert isinstance(extend, Extend)
        session = self._sessions.get(extend.stream_id)
        if isinstance(answer, Answer) and answer.status == 404 and _NO_SESSION in answer.body:
            # The broker knows this request, so the stream has ended.
            self._drop(extend.stream_id)
        elif isinstance(answer, Answer) and answer.status in (404, 405, 501):
            self._extends = False
        elif session is not None:
            session.clock_since = now

    def handle_committed_offsets(self, committed: Mapping[Place, str]) -> None:
        """Take the committed offsets: current batches begin after them."""
        look, self._request = self._request, None
        assert isinstance(look, Look)
        session = self._sessions.get(look.stream_id)
        for batch in session.in_hand.values() if session else ():
            # "" is not an offset. It prevents another request for one.
            batch.before = batch.before or committed.get(batch.cursor.place, "")

    def handle_leave_answer(self, answer: Answer | NoAnswer) -> None:
        """Take the answer to `Leave`. If none came, the broker releases the partitions later."""
        leave, self._request = self._request, None
        assert isinstance(leave, Leave)
        if isinstance(answer, Answer) and answer.status in (404, 405, 501):
            self._leaves = False
        self._drop(leave.stream_id)

    def lost_stream(self) -> str | None:
        """Return the id of the current stream if it was left or accepts no more commits, although its connection is
        still open; else None.
        """
        current = self._current
        return current.stream_id if current and current.stream_id not in self._sessions else None

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    # Figures ----------------------------------------------------------------------------------------------------------

    def health(self, now: float) -> Health:
        return Health(
            state=self.state.name.lower(),
            partitions=len(self._current.seen) if self._current else 0,
            events_handled=self._events,
            events_committed=self._events_committed,
            batches_handled=self._batches,
            batches_waiting=len(self._ready),
            commits=self._commits,
            commits_lost=self._commits_lost,
            reconnects=max(0, self._streams - 1),
            seconds_since_line=None if self._line_at is None else now - self._line_at,
            seconds_in_hand=None if self._hand_since is None else now - self._hand_since,
        )

    # ------------------------------------------------------------------------------------------------------------------

    def _note_end(self, place: Place, offset: str) -> None:
        """Note that a partition is finished up to an offset, and stop after the last partition. Offsets sort like their
        strings.
        """
        if place in self._ends and offset >= self._ends[place]:
            del self._ends[place]
            if not self._ends:
                self.stop()

    def _options_of_next(self) -> StreamOptions:
        """Return the parameters of the next stream: it delivers at most as many events as `limit` still allows."""
        options = self.options
        if self._limit < inf:
            left = int(self._limit) - self._handed_out
            options = msgspec.structs.replace(options, stream_limit=min(options.stream_limit or left, left))
        return (
            options if self._follow else msgspec.structs.replace(options, stream_keep_alive_limit=_EMPTY_LINES_AT_END)
        )

    def _recover(self) -> None:
        self._failures = 0
        self._failing_since = self._taken_since = inf

    def _pause(self, error: NakadiError, now: float, asked: float | None = None) -> None:
        """Plan a pause after a failure, or end the consumer if the failures have lasted too long."""
        self._failing_since = min(self._failing_since, now)
        self._wait_after(self._pauses, error, now, asked)
        # The requested end of a stream is not a failure.
        if now - self._failing_since >= self._patience.without_answer and not self._stopping:
            self._error = self._error or error

    def _wait_after(self, pauses: Pauses, error: NakadiError, now: float, asked: float | None) -> None:
        self._failures += 1
        pause = pauses.after(self._failures, self._draw, asked)
        self._reopen_at = now + pause
        self._trouble = Trouble(error, self._failures, pause)

    def _tell(self, gained: set[Place], lost: set[Place]) -> None:
        assigned = frozenset(self._current.seen) if self._current else frozenset()
        if gained or lost:
            self._told.append(Rebalance(frozenset(gained), frozenset(lost), assigned))

    def _look_for_lost(self, session: _Session, now: float) -> None:
        silent = now - _SILENT_FLUSHES * self.options.batch_flush_timeout - _SILENT_SECONDS
        if min(session.seen.values()) < silent:
            lost = {place for place, at in session.seen.items() if at < silent}
            session.seen = {place: at for place, at in session.seen.items() if at >= silent}
            self._tell(set(), lost)

    def _last_commits_until(self, now: float) -> float:
        """The time until which a new stream waits for the commits of earlier ones."""
        return max(
            (
                session.closed_at + _SECONDS_FOR_LAST_COMMITS
                for session in self._sessions.values()
                if session.is_to_be_settled and session.closed_at + _SECONDS_FOR_LAST_COMMITS > now
            ),
            default=-inf,
        )

    def _due(self, session: _Session, now: float) -> tuple[Action | None, float]:
        """The next action that a stream needs from the committer, and when the action is due."""
        is_ending = session is not self._current or self._stopping or self._error is not None
        if session.handled.last:
            return self._commit_of(session), now if is_ending else self._commit_at(session.handled)
        if session.in_hand:
            return self._sign_of_life(session, now)
        return (Leave(session.stream_id), now) if is_ending else (None, inf)

    def _commit_at(self, handled: _Handled) -> float:
        policy = self._policy
        # If the window is full of finished events, no more events arrive to reach the number.
        if handled.events >= min(policy.events or inf, self.options.max_uncommitted_events / 2):
            return handled.since
        if policy.events is None and policy.seconds is None:
            return max(handled.since, self._committed_at + _SHARED_COMMIT_SECONDS)
        longest = self.options.commit_timeout * _COMMIT_PART
        return handled.since + (longest if policy.seconds is None else min(longest, policy.seconds))

    def _commit_of(self, session: _Session) -> Commit:
        return Commit(session.stream_id, tuple(batch.cursor for batch in session.handled.last.values()))

    def _sign_of_life(self, session: _Session, now: float) -> tuple[Action | None, float]:
        at = session.clock_since + self.options.commit_timeout * _LIFE_PART
        if at > now or self._extends:
            return Extend(session.stream_id), at
        cursors = [cursor for each in session.in_hand.values() if (cursor := each.cursor_of_progress())]
        if cursors:
            return Commit(session.stream_id, tuple(cursors), is_progress=True), at
        if any(each.progress and each.before is None for each in session.in_hand.values()):
            return Look(session.stream_id), at
        # Nothing can be committed now. The application may reach its next event at any time, so look again soon.
        return None, now + self.options.commit_timeout * _LOOK_AGAIN_PART

    def _forget_dead(self, now: float) -> None:
        """Give up streams that the broker has certainly ended."""
        for session in list(self._sessions.values()):
            if session.closed_at + self.options.commit_timeout < now:
                self._commits_lost += bool(session.handled.last)
                self._drop(session.stream_id)

    def _drop(self, stream_id: str) -> None:
        self._sessions.pop(stream_id, None)
        # Their events come again with the next stream.
        self._ready = deque(each for each in self._ready if each.stream_id != stream_id)
