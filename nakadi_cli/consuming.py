"""`nakadi consume`: passes the events of a subscription to a command, whose exit code says what may be committed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import click

from nakadi_cli.api import Api, path, read_lines
from nakadi_cli.commands import attentive, calm, command, connect, interrupt, note
from nakadi_cli.failures import Conflict, Failed, NotAnswered, NotFound, NotPermitted, Refused
from nakadi_cli.output import format_count, harmless, harmless_json
from nakadi_cli.reading_events import split_texts

_MOST_BREAKS = 5
# Partitions of a consumer that broke off are free after its commit timeout, a minute at most.
_MOST_WAITS, _SECONDS_OF_WAIT = 40, 2.0

# Two extensions may get lost before the commit timeout is over.
EXTENSIONS_PER_TIMEOUT = 3

# The events as texts, as they were stored.
Taker = Callable[[dict[str, Any], list[str]], None]


@command(
    "consume",
    "nakadi consume 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11",
    "nakadi consume 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --exec './import.sh' --batch-size 50",
    "nakadi consume 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --no-follow > orders.ndjson",
    shows=False,
)
@click.argument("subscription")
@click.option("--exec", "line", help="A shell command that runs for each batch, with the events on its standard input.")
@click.option("--batch-size", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Events in a batch.")
@click.option(
    "--commit-timeout",
    type=click.IntRange(1, 60),
    default=60,
    show_default=True,
    help="Seconds that the broker waits for a commit. `consume` extends them while it works on a batch.",
)
@click.option("-n", "--limit", type=click.IntRange(1), help="End after this many events.")
@click.option("--no-follow", is_flag=True, help="End when no more events wait.")
def consume(
    subscription: str, line: str | None, batch_size: int, commit_timeout: int, limit: int | None, no_follow: bool
) -> None:
    """Consume the events of a subscription, and commit them.

    Without --exec, each event is a line on standard output, and `consume` commits a batch after writing it. With
    --exec, it runs the command once for each batch, with one event on each line of standard input, and
    NAKADI_EVENT_TYPE, NAKADI_PARTITION and NAKADI_OFFSET in the environment. Exit code 0 commits the batch. Any other
    code ends `consume` with 1, and the events come again to the next consumer at once.

    After Ctrl-C or SIGTERM, `consume` finishes and commits the current batch. A second signal also ends the command,
    and does not commit its batch.
    """
    with _stopping() as stop:
        take = _to_command(line, stop) if line else _to_stdout
        consumer = _Consumer(connect(), subscription, take, stop)
        with attentive():
            consumer.run(batch_size, limit, commit_timeout, follow=not no_follow)
    if line:
        note(f"{format_count(consumer.committed, 'event')} committed.")


class Stopped(BaseException):
    """A signal came while nothing was being worked on."""


@dataclass
class Stop:
    """What signals have asked for. They interrupt waiting, but not working; the second a commit too."""

    asked: bool = False
    asked_again: bool = False
    waiting: bool = False
    committing: bool = False
    child: subprocess.Popen[bytes] | None = None

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.asked_again = self.asked
        self.asked = True
        if self.asked_again:
            self._end_child()
        if self.waiting or (self.committing and self.asked_again):
            interrupt(Stopped)

    @contextmanager
    def working(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """End this child when a signal comes that is not the first."""
        self.child = child
        # It was already running before it was known here, and a signal in between has found no child.
        if self.asked_again:
            self._end_child()
        try:
            yield
        finally:
            self.child = None

    def _end_child(self) -> None:
        if self.child is not None:
            # It leads a process group of its own, so that its own children end with it. It may just have ended.
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGTERM)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal end what waits here. One that came just before ends it too."""
        self.waiting = True
        try:
            if self.asked:
                raise Stopped
            yield
        finally:
            self.waiting = False

    @contextmanager
    def end_on_second_signal(self) -> Iterator[None]:
        """Let a signal end what waits here if it is not the first. One that came before does not: a commit takes a
        moment, unless the broker does not answer.
        """
        self.committing = True
        try:
            yield
        finally:
            self.committing = False


@dataclass
class _Stream:
    """An open stream, as its client asks for it to end, or for more time."""

    api: Api
    subscription: str
    id: str
    _at_work: bool = field(default=False, init=False)

    def leave(self) -> None:
        self.api.delete(path("subscriptions", self.subscription, "streams", self.id))

    @contextmanager
    def working(self) -> Iterator[None]:
        """What happens in here may take long: the stream waits for it."""
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    @contextmanager
    def extend_every(self, seconds: float) -> Iterator[None]:
        """Ask for more time now and then while a batch is worked on."""
        ended = threading.Event()

        def extend_while_working() -> None:
            # A batch that ends meanwhile is harmless: an extension of a stream without uncommitted events does nothing.
            while not ended.wait(seconds):
                if self._at_work:
                    self._extend()

        threading.Thread(target=extend_while_working, daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _extend(self) -> None:
        # Other brokers know no extensions. A stream that has ended is noticed by the commit, and a client that is being
        # closed, which is the `RuntimeError`, needs no more time.
        with suppress(Failed, RuntimeError):
            self.api.send("POST", path("subscriptions", self.subscription, "streams", self.id, "extend"))


@dataclass
class _Consumer:
    api: Api
    subscription: str
    take: Taker
    stop: Stop
    committed: int = 0
    _broken: int = field(default=0, init=False)
    _waits: int = field(default=0, init=False)

    def run(self, batch_size: int, limit: int | None, commit_timeout: int, *, follow: bool) -> None:
        """Open one stream after the other, until the limit, the end, or a signal."""
        try:
            while limit is None or self.committed < limit:
                left = limit - self.committed if limit else None
                try:
                    self._stream(_parameters(batch_size, left, commit_timeout, follow=follow), commit_timeout)
                except Conflict as taken:
                    self._wait_for_partitions(taken)
                except (NotAnswered, _NotCommitted) as gone:
                    self._pause_after(gone)
                else:
                    if not follow and not self._something_waits():
                        return
        except Stopped:
            # Here, where it can be interrupted once more.
            with suppress(Stopped):
                self.api.close()

    def _something_waits(self) -> bool:
        """Look whether events are left, for a stream also ends when another one still has the partitions."""
        with self.stop.interruptible():
            found = self.api.get(path("subscriptions", self.subscription, "stats"))
        return any(each.get("unconsumed_events") for item in found["items"] for each in item["partitions"])

    def _stream(self, parameters: dict[str, int | str], commit_timeout: int) -> None:
        where = path("subscriptions", self.subscription, "events")
        with self.stop.interruptible():
            opening = self.api.stream(where, params=parameters)
            answer = opening.__enter__()
        try:
            stream = _Stream(self.api, self.subscription, answer.headers["X-Nakadi-StreamId"])
            with self._left_when_broken_off(stream), stream.extend_every(commit_timeout / EXTENSIONS_PER_TIMEOUT):
                self._take_all(read_lines(answer), stream)
        finally:
            opening.__exit__(None, None, None)

    @contextmanager
    def _left_when_broken_off(self, stream: _Stream) -> Iterator[None]:
        """Leave a stream that goes on, so that other consumers need not wait for its events.

        If the broker does not answer, or the user is in a hurry, the end of the connection has to do.
        """
        try:
            yield
        except (NotAnswered, _NotCommitted):
            raise
        except (Failed, Stopped):
            if not self.stop.asked_again:
                with suppress(Failed), self.stop.end_on_second_signal():
                    stream.leave()
            raise

    def _take_all(self, lines: Iterator[str], stream: _Stream) -> None:
        while True:
            with self.stop.interruptible():
                line = next(lines, None)
            if line is None:
                return
            batch = json.loads(line)
            if "cursor" not in batch:
                raise Refused(harmless(f"The stream has ended: {batch.get('detail') or batch.get('title')}"))
            if events := batch.get("events"):
                with stream.working():
                    self.take(batch["cursor"], [*split_texts(line, len(events))])
                self._commit(batch["cursor"], stream.id)
                self.committed += len(events)
                self._broken = self._waits = 0

    def _commit(self, cursor: dict[str, Any], stream_id: str) -> None:
        where = path("subscriptions", self.subscription, "cursors")
        try:
            with self.stop.end_on_second_signal():
                self.api.send("POST", where, body={"items": [cursor]}, headers={"X-Nakadi-StreamId": stream_id})
        except (NotFound, NotPermitted):
            raise
        except Refused as late:
            raise _NotCommitted(f"A batch was not committed, so its events come again: {late.message}") from late

    def _wait_for_partitions(self, taken: Conflict) -> None:
        if self._waits == _MOST_WAITS:
            raise taken
        if self._waits == 0:
            note(f"{taken.message} Waiting.")
        self._waits += 1
        with self.stop.interruptible():
            time.sleep(_SECONDS_OF_WAIT)

    def _pause_after(self, gone: Failed) -> None:
        self._broken += 1
        if self._broken > _MOST_BREAKS:
            raise gone
        note(f"{gone.message} Trying again.")
        with self.stop.interruptible():
            time.sleep(min(10.0, 0.2 * 2**self._broken))


class _NotCommitted(Refused):
    """The stream is over, and with it the right to commit."""


def _parameters(batch_size: int, left: int | None, commit_timeout: int, *, follow: bool) -> dict[str, int | str]:
    size = min(batch_size, left or batch_size)
    parameters: dict[str, int | str] = {
        "batch_limit": size,
        "max_uncommitted_events": 2 * size,
        "batch_flush_timeout": 1,
        "commit_timeout": commit_timeout,
        "on_disconnect": "release",
    }
    if left:
        parameters["stream_limit"] = left
    if not follow:
        parameters["stream_keep_alive_limit"] = 1
    return parameters


def _to_stdout(_cursor: dict[str, Any], events: list[str]) -> None:
    sys.stdout.write("".join(f"{harmless_json(event)}\n" for event in events))
    sys.stdout.flush()


def _to_command(line: str, stop: Stop) -> Taker:
    def take(cursor: dict[str, Any], events: list[str]) -> None:
        named = {
            "NAKADI_EVENT_TYPE": cursor["event_type"],
            "NAKADI_PARTITION": cursor["partition"],
            "NAKADI_OFFSET": cursor["offset"],
        }
        # In a session of its own, for Ctrl-C reaches everything in the terminal's, and the batch shall be finished.
        child = subprocess.Popen(  # noqa: S602  # the user's own command, written as for a shell
            line, shell=True, stdin=subprocess.PIPE, env={**os.environ, **named}, start_new_session=True
        )
        with stop.working(child):
            child.communicate("".join(f"{event}\n" for event in events).encode())
        if child.returncode != 0:
            raise Failed(
                harmless(
                    f"The command ended with exit code {child.returncode} "
                    f"at {format_count(len(events), 'event')} up to "
                    f"{cursor['offset']} of partition {cursor['partition']} of {cursor['event_type']}; "
                    "not committed."
                )
            )

    return take


@contextmanager
def _stopping() -> Iterator[Stop]:
    stop = Stop()
    before = {number: signal.signal(number, stop.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        calm()
        for number, handler in before.items():
            signal.signal(number, handler)
