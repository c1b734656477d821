"""`nakadi consume`: passes the events of a subscription to a command, whose exit code says whether to commit them."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from nakadi_cli.commands import command, connect, noticing_signals, print_note
from nakadi_cli.failures import Failed
from nakadi_cli.output import format_count, harmless, harmless_json

if TYPE_CHECKING:
    import msgspec

    from nakadi_client import Batch, Consumer

    Taker = Callable[[Batch[msgspec.Raw]], None]


@command(
    "consume",
    "nakadi consume 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11",
    "nakadi consume 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --exec './import.sh' --batch-size 50",
    "nakadi consume 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 --no-follow > orders.ndjson",
    shows=False,
)
@click.argument("subscription")
@click.option("--exec", "line", help="A shell command that runs for each batch, with the events on its standard input.")
@click.option(
    "--batch-size",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="The maximum number of events in a batch.",
)
@click.option(
    "--commit-timeout",
    type=click.IntRange(1, 60),
    default=60,
    show_default=True,
    help="Seconds that the broker waits for a commit. `consume` extends them while it works on a batch.",
)
@click.option("-n", "--limit", type=click.IntRange(1), help="End after this many events.")
@click.option("--no-follow", is_flag=True, help="End after the events that existed at the start.")
def consume(
    subscription: str, line: str | None, batch_size: int, commit_timeout: int, limit: int | None, no_follow: bool
) -> None:
    """Consume the events of a subscription, and commit them.

    Without --exec, each event is a line on standard output, and `consume` commits a batch after writing it. With
    --exec, it runs the command once for each batch, with one event on each line of standard input, and
    NAKADI_EVENT_TYPE, NAKADI_PARTITION and NAKADI_OFFSET in the environment. Exit code 0 commits the batch. Any other
    code ends `consume` with 1, and the next consumer gets the events at once.

    After Ctrl-C or SIGTERM, `consume` finishes and commits the current batch. A second signal also ends the command,
    and does not commit its batch.
    """
    import msgspec

    from nakadi_cli.patience import PATIENCE, client_failures, show_trouble
    from nakadi_client import Consumer, Rebalance, StreamOptions

    def show_end_of_stream(change: Rebalance) -> None:
        if not change.assigned and not stop.is_asked:
            print_note("The stream has ended, and this consumer opens another.")

    follows = limit is None and not no_follow
    consumer = Consumer[msgspec.Raw](
        connect().connection.of_client,
        subscription,
        model=msgspec.Raw,
        options=StreamOptions(
            batch_limit=batch_size,
            max_uncommitted_events=2 * batch_size,
            commit_timeout=commit_timeout,
            on_disconnect="release",
        ),
        limit=limit,
        follow=not no_follow,
        patience=PATIENCE,
        on_trouble=show_trouble,
        # With a limit, the broker ends the stream as requested.
        on_rebalance=show_end_of_stream if follows else None,
        stop_on_signals=False,
    )
    with _handling_signals(consumer) as stop, noticing_signals(), client_failures(), consumer:
        take = _to_command(line, stop) if line else _to_stdout
        for batch in consumer:
            take(batch)
            # The thread that stops the consumer may be too late to prevent the next batch.
            if stop.is_asked:
                batch.done()
                break
    if line:
        print_note(f"{format_count(consumer.health().events_committed, 'event')} committed.")


class Stop:
    """Ends `consume` as signals request. The first signal stops the consumer when its batch is done. Another
    signal ends the command that works on the batch or, if there is no such command, the commit, which takes long only
    if the broker does not answer.
    """

    def __init__(self, consumer: Consumer[Any]) -> None:
        self._consumer = consumer
        self._signals = 0
        self._child: subprocess.Popen[bytes] | None = None
        # A handler runs between any two steps of the main thread, which may hold a lock of the consumer. So the handler
        # only notifies another thread, which can wait for locks.
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._obey_orders, name="nakadi-signals", daemon=True).start()

    @property
    def is_asked(self) -> bool:
        return self._signals > 0

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals == 1:
            self._orders.put(self._consumer.stop)
        elif self._child is not None:
            self._end_child()
        else:
            self._orders.put(self._consumer.abort)

    def close(self) -> None:
        self._orders.put(None)

    @contextmanager
    def guarding_child(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """End this child when a second or later signal comes."""
        self._child = child
        # The child was running before this object knew it, so a signal in between has found no child.
        if self._signals > 1:
            self._end_child()
        try:
            yield
        finally:
            self._child = None

    def _obey_orders(self) -> None:
        while order := self._orders.get():
            order()

    def _end_child(self) -> None:
        if self._child is not None:
            # The child leads a process group, so that its own children end with it. The child may just have ended.
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGTERM)


def _to_stdout(batch: Batch[msgspec.Raw]) -> None:
    sys.stdout.write("".join(f"{harmless_json(bytes(event).decode())}\n" for event in batch.events))
    sys.stdout.flush()


def _to_command(line: str, stop: Stop) -> Taker:
    def take(batch: Batch[msgspec.Raw]) -> None:
        named = {
            "NAKADI_EVENT_TYPE": batch.event_type,
            "NAKADI_PARTITION": batch.partition,
            "NAKADI_OFFSET": batch.offset,
        }
        # The child has a separate session, because Ctrl-C reaches every process in the terminal's session, and the
        # batch must be finished.
        child = subprocess.Popen(  # noqa: S602  # the user's own command, written as for a shell
            line, shell=True, stdin=subprocess.PIPE, env={**os.environ, **named}, start_new_session=True
        )
        with stop.guarding_child(child):
            child.communicate(b"".join(bytes(event) + b"\n" for event in batch.events))
        if child.returncode != 0:
            raise Failed(
                harmless(
                    f"The command ended with exit code {child.returncode} "
                    f"at {format_count(len(batch), 'event')} up to "
                    f"{batch.offset} of partition {batch.partition} of {batch.event_type}; "
                    "not committed."
                )
            )

    return take


@contextmanager
def _handling_signals(consumer: Consumer[Any]) -> Iterator[Stop]:
    stop = Stop(consumer)
    before = {number: signal.signal(number, stop.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()
