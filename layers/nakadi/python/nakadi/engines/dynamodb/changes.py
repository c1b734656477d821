"""Noticing what other processes change in the same table.

Each change leaves an item that is named by the time, and watchers ask for the items after the last one that they know:
one small question, however many subscriptions there are, and none without watchers.

A subscription in which something changed a moment ago need not be reported again: each watcher looks once
more, a little later. So many commits are as cheap as few.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from uuid import uuid4

from nakadi.engines.dynamodb.client import FAILURES, Attempts
from nakadi.engines.dynamodb.coordination_table import KEPT_SECONDS, NEWS, CoordinationItem
from nakadi.model.coordination import Changed
from nakadi.model.outcomes import Unavailable

PAUSE = 0.4
"""Seconds between two looks."""

MOMENT = 0.4
"""Changes within the same period of this length are reported once."""

ECHO = MOMENT + 0.1
"""So long after hearing of a change, whatever else happened in the same moment has been written, too."""

LATE = 2.0
"""News may be seen so much later than others that bear a later time: clocks differ, and writes take theirs."""

DIGITS = 16

_log = logging.getLogger(__name__)

Tell = Callable[[str, Changed], None]


def in_one_moment(first: int, second: int) -> bool:
    """Whether two changes, in microseconds, are reported once."""
    length = int(MOMENT * 1_000_000)
    return first // length == second // length


class Feed:
    """What others change, as far as it is known; asked by one thread at a time."""

    def __init__(self, items: type[CoordinationItem], name: str, now: Callable[[], float] = time.time) -> None:
        self._items = items
        self._name = name
        self._now = now
        self._after = ""
        self._seen: frozenset[str] = frozenset()
        self._echoes: deque[tuple[float, str]] = deque()

    def begin(self) -> None:
        """Earlier changes are of no interest."""
        self._after, self._seen = _key(self._now() - LATE), frozenset()

    def look(self, at: float) -> Sequence[tuple[str, Changed]]:
        """What others changed since the last look. `at` is on a steady clock."""
        found = list(self._items.query(NEWS, range_key_condition=CoordinationItem.item > self._after))
        new = [each for each in found if each.item not in self._seen]
        self._echoes.extend((at + ECHO, each.about) for each in new)
        if found:
            self._go_on(found[-1].item)
            self._seen = frozenset(each.item for each in found if each.item > self._after)
        return [(each.about, Changed(each.changed)) for each in new if each.teller != self._name]

    def _go_on(self, newest: str) -> None:
        """The next look begins a little before the newest, for some arrive late; no clock of another process that is
        ahead makes us deaf to the rest.
        """
        seconds = min(int(newest[:DIGITS]) / 1_000_000, self._now())
        self._after = max(self._after, _key(seconds - LATE))

    def echoes(self, at: float) -> Sequence[str]:
        """Where something may have changed in the same moment as what was reported."""
        again: dict[str, None] = {}
        while self._echoes and self._echoes[0][0] <= at:
            again[self._echoes.popleft()[1]] = None
        return list(again)

    @property
    def next_echo(self) -> float:
        return self._echoes[0][0] if self._echoes else inf


class SubscriptionChanges:
    """Polls the table while this process has watchers, and not at all otherwise."""

    def __init__(self, items: type[CoordinationItem], attempts: Attempts, tell: Tell) -> None:
        self._items = items
        self._attempts = attempts
        self._tell = tell
        self._name = uuid4().hex[:8]
        self._feed = Feed(items, self._name)
        self._lock = threading.Lock()
        self._interested = 0
        self._somebody = threading.Event()
        self._closed = threading.Event()
        self._deaf = False
        self._thread: threading.Thread | None = None

    def note(self, subscription: str, changed: Changed) -> None:
        """Leave the news. Without them, others find out when they look again of their own accord."""
        now = time.time()
        item = self._items(
            NEWS,
            f"{_key(now)}#{uuid4().hex[:8]}",
            about=subscription,
            changed=changed.value,
            teller=self._name,
            expires=int(now) + KEPT_SECONDS,
        )
        try:
            self._attempts.at(lambda _: item.save())
        except Unavailable:
            _log.warning("Reporting a change of subscription %s to other processes failed", subscription, exc_info=True)

    def attend(self) -> None:
        """Begin to report what other processes change. Makes no call."""
        with self._lock:
            if self._closed.is_set():
                raise Unavailable("The coordination is closed.")
            self._interested += 1
            self._somebody.set()
            if self._thread is None:
                self._feed.begin()
                self._thread = threading.Thread(target=self._keep_looking, name="coordination-news", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        with self._lock:
            self._interested -= 1
            if self._interested == 0:
                self._somebody.clear()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
        self._somebody.set()
        if self._thread is not None:
            self._thread.join()

    def _keep_looking(self) -> None:
        next_look = time.monotonic() + PAUSE
        while not self._closed.wait(max(0.0, min(next_look, self._feed.next_echo) - time.monotonic())):
            if not self._somebody.is_set():
                self._somebody.wait()
                self._feed.begin()
            if time.monotonic() >= next_look and not self._closed.is_set():
                self._poll()
                next_look = time.monotonic() + PAUSE
            for subscription in self._feed.echoes(time.monotonic()):
                self._tell(subscription, Changed.OFFSETS)

    def _poll(self) -> None:
        try:
            found = self._feed.look(time.monotonic())
        except FAILURES:
            # The next look is soon, and asks for what was missed. It is said once.
            if not self._deaf:
                _log.warning("Looking for changes of other processes failed, tried again in %s s", PAUSE, exc_info=True)
            self._deaf = True
            return
        except Exception:  # noqa: BLE001  # waiting streams would wait for ever
            _log.exception("Looking for changes of other processes failed, tried again in %s s", PAUSE)
            return
        self._deaf = False
        for subscription, changed in found:
            self._tell(subscription, changed)


def _key(seconds: float) -> str:
    return f"{int(seconds * 1_000_000):0{DIGITS}d}"
