"""Noticing what other processes change in the same table.

Whoever changes something leaves a piece of news, named by the time; whoever watches asks for those after the last one
it knows: one small question, however many subscriptions there are, and none while nobody watches.

A subscription in which something changed a moment ago need not be told of again: everybody who hears of it looks once
more, a little later. So many commits are as cheap as few.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from uuid import uuid4

from nakadi.coordination.dynamodb_items import KEPT_SECONDS, NEWS, CoordinationItem
from nakadi.dynamodb.calls import FAILURES, Attempts
from nakadi.model.coordination import Changed
from nakadi.model.outcomes import Unavailable

PAUSE = 0.4
"""Seconds between two looks."""

MOMENT = 0.4
"""What changes within the same piece of this length is told of once."""

ECHO = MOMENT + 0.1
"""So long after hearing of a change, whatever else happened in the same moment has been written, too."""

LATE = 2.0
"""News may be seen so much later than others that bear a later time: clocks differ, and writes take theirs."""

_log = logging.getLogger(__name__)

Tell = Callable[[str, Changed], None]


def in_one_moment(first: int, second: int) -> bool:
    """Whether two changes, in microseconds, are told of once."""
    length = int(MOMENT * 1_000_000)
    return first // length == second // length


class News:
    """Looks at the table while somebody in this process is interested, and not at all otherwise."""

    def __init__(
        self,
        items: type[CoordinationItem],
        attempts: Attempts,
        tell: Tell,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._items = items
        self._attempts = attempts
        self._tell = tell
        self._now = now
        self._name = uuid4().hex[:8]
        self._lock = threading.Lock()
        self._interested = 0
        self._somebody = threading.Event()
        self._closed = threading.Event()
        self._after = ""
        self._seen: frozenset[str] = frozenset()
        self._echoes: deque[tuple[float, str]] = deque()
        self._deaf = False
        self._thread: threading.Thread | None = None

    def note(self, subscription: str, changed: Changed) -> None:
        """Leave the news. Without them, others find out when they look again of their own accord."""
        now = self._now()
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
            _log.warning("Others were not told of a change in %s", subscription, exc_info=True)

    def attend(self) -> None:
        """From now on, tell what others change. Asks nobody."""
        with self._lock:
            if self._interested == 0:
                self._after, self._seen = _key(self._now() - LATE), frozenset()
            self._interested += 1
            self._somebody.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_looking, name="coordination-news", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        with self._lock:
            self._interested -= 1
            if self._interested == 0:
                self._somebody.clear()

    def close(self) -> None:
        self._closed.set()
        self._somebody.set()
        if self._thread is not None:
            self._thread.join()

    def _keep_looking(self) -> None:
        next_look = time.monotonic() + PAUSE
        while not self._closed.wait(max(0.0, self._due(next_look) - time.monotonic())):
            self._somebody.wait()
            if time.monotonic() >= next_look and not self._closed.is_set():
                self._look()
                next_look = time.monotonic() + PAUSE
            self._tell_echoes(time.monotonic())

    def _due(self, next_look: float) -> float:
        return min(next_look, self._echoes[0][0]) if self._echoes else next_look

    def _look(self) -> None:
        with self._lock:
            after, seen = self._after, self._seen
        try:
            found = list(self._items.query(NEWS, range_key_condition=CoordinationItem.item > after))
        except FAILURES:
            self._heard_nothing()
            return
        self._deaf = False
        self._remember(after, [each.item for each in found])
        for each in found:
            if each.item not in seen:
                self._hear(each)

    def _heard_nothing(self) -> None:
        """The next look is soon, and asks for what was missed. It is said once."""
        if not self._deaf and not self._closed.is_set():
            _log.warning("What other processes change is not heard at the moment", exc_info=True)
        self._deaf = True

    def _remember(self, after: str, items: list[str]) -> None:
        """Where the next look begins: a little before the newest, in case something arrives late. No clock of somebody
        else's that is ahead makes us deaf to the rest.
        """
        newest = min(max(items, default=""), _key(self._now()))
        with self._lock:
            if self._after == after:  # else somebody began to attend anew
                self._after = max(after, _key(int(newest[:16]) / 1_000_000 - LATE)) if items else after
                self._seen = frozenset(each for each in items if each > self._after)

    def _hear(self, news: CoordinationItem) -> None:
        self._echoes.append((time.monotonic() + ECHO, news.about))
        if news.teller != self._name:
            self._tell(news.about, Changed(news.changed))

    def _tell_echoes(self, now: float) -> None:
        again = set()
        while self._echoes and self._echoes[0][0] <= now:
            again.add(self._echoes.popleft()[1])
        for subscription in again:
            self._tell(subscription, Changed.OFFSETS)


def _key(seconds: float) -> str:
    return f"{int(seconds * 1_000_000):016d}"
