"""The keys that tokens are signed with, from a JWKS in a file or behind a URL."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import jwt

from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import Clock

# Keys are rotated rarely; a key id that is not known, and a signature that does not fit its key, are reasons to look
# again, though not for every request that invents one.
KEEP_SECONDS = 300.0
LOOK_AGAIN_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0
LARGEST_KEY_SET = 1_000_000

Fetch = Callable[[], bytes]


class KeySet:
    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_at: float | None = None

    def key(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key of this id; without an id, the only key there is."""
        known = self._find(key_id)
        if known is not None and not self._older_than(KEEP_SECONDS):
            return known
        # One caller looks again; others wait for it only if they have nothing to go on with.
        if not self._lock.acquire(blocking=known is None):
            return known
        try:
            if self._older_than(KEEP_SECONDS if self._find(key_id) else LOOK_AGAIN_SECONDS):
                self._refresh()
        finally:
            self._lock.release()
        return self._find(key_id)

    def successor(self, key_id: str | None, known: jwt.PyJWK) -> jwt.PyJWK | None:
        """The key that has this id now, if it is another one than was known: some issuers use an id again, or none."""
        if self._lock.acquire(blocking=False):  # who looks already finds it for the next request
            try:
                if self._older_than(LOOK_AGAIN_SECONDS):
                    self._refresh()
            finally:
                self._lock.release()
        current = self._find(key_id)
        return None if current is known else current

    def _find(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _older_than(self, seconds: float) -> bool:
        return self._fetched_at is None or self._clock.monotonic() - self._fetched_at >= seconds

    def _refresh(self) -> None:
        try:
            keys = jwt.PyJWKSet.from_json(self._fetch().decode()).keys
        except (OSError, ValueError, jwt.PyJWTError) as error:
            # Keys that worked go on working while their source does not answer.
            if not self._keys:
                raise Unavailable("The keys that tokens are checked with cannot be read") from error
        else:
            self._keys = {key.key_id: key for key in keys}
        self._fetched_at = self._clock.monotonic()


def fetch_from(location: str) -> Fetch:
    """How to read a JWKS: from an http(s) URL, or from a file."""
    if location.startswith(("https://", "http://")):
        return lambda: _download(location)
    return Path(location.removeprefix("file://")).read_bytes


def _download(url: str) -> bytes:
    # The URL is the operator's own setting, and its scheme was looked at above.
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
        body: bytes = answer.read(LARGEST_KEY_SET)
    return body
