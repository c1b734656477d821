"""The keys that verify tokens: a JWKS, downloaded when needed and kept for some minutes."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import jwt

from nakadi.common.work import check_may_block
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import Clock

# Keys are rotated rarely. An unknown key id, or a signature that does not fit its key, is a reason to download them
# again, but only so often, since clients can invent ids.
KEY_SET_MAX_AGE_SECONDS = 300.0
KEY_SET_RETRY_INTERVAL_SECONDS = 10.0
KEY_SET_DOWNLOAD_TIMEOUT_SECONDS = 5.0
MAX_KEY_SET_BYTES = 1_000_000

FetchKeys = Callable[[], bytes]


class KeySet:
    def __init__(self, fetch: FetchKeys, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: dict[str | None, jwt.PyJWK] = {}
        # The times of both clocks: a function may be suspended between two requests, and the steady clock stops
        # meanwhile.
        self._fetched_at: tuple[float, float] | None = None

    def find_key(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key with this id; without an id, the only key of the set."""
        known = self._find_known_key(key_id)
        if known is not None and not self._is_older_than(KEY_SET_MAX_AGE_SECONDS):
            return known
        check_may_block()
        # One thread fetches the keys; others wait for that thread only if they have no key to use meanwhile.
        if not self._lock.acquire(blocking=known is None):
            return known
        try:
            if self._is_older_than(
                KEY_SET_MAX_AGE_SECONDS if self._find_known_key(key_id) else KEY_SET_RETRY_INTERVAL_SECONDS
            ):
                self._refresh()
        finally:
            self._lock.release()
        return self._find_known_key(key_id)

    def find_replacement_key(self, key_id: str | None, known: jwt.PyJWK) -> jwt.PyJWK | None:
        """The key that has replaced `known` under this id, if any: some issuers reuse ids, or use none."""
        check_may_block()
        if self._lock.acquire(blocking=False):  # another thread is fetching them: the next request finds the key
            try:
                if self._is_older_than(KEY_SET_RETRY_INTERVAL_SECONDS):
                    self._refresh()
            finally:
                self._lock.release()
        current = self._find_known_key(key_id)
        return None if current is known else current

    def _find_known_key(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _is_older_than(self, seconds: float) -> bool:
        if self._fetched_at is None:
            return True
        passed = [now - then for now, then in zip(self._read_clocks(), self._fetched_at, strict=True)]
        # If the time of day was set back, the age is unknown.
        return not all(0 <= each < seconds for each in passed)

    def _read_clocks(self) -> tuple[float, float]:
        return self._clock.monotonic(), self._clock.now().timestamp()

    def _refresh(self) -> None:
        try:
            keys = jwt.PyJWKSet.from_json(self._fetch().decode()).keys
        except (OSError, ValueError, jwt.PyJWTError) as error:
            # Keys of an earlier successful fetch stay in use while their source does not answer.
            if not self._keys:
                raise Unavailable("The keys that tokens are checked with cannot be read") from error
        else:
            self._keys = {key.key_id: key for key in keys}
        self._fetched_at = self._read_clocks()


def make_key_fetcher(location: str) -> FetchKeys:
    """A function that reads a JWKS from an http(s) URL or from a file."""
    if location.startswith(("https://", "http://")):
        return lambda: _download(location)
    return Path(location.removeprefix("file://")).read_bytes


def _download(url: str) -> bytes:
    # The URL comes from the operator's settings, and `make_key_fetcher` has checked its scheme.
    with urllib.request.urlopen(url, timeout=KEY_SET_DOWNLOAD_TIMEOUT_SECONDS) as answer:  # noqa: S310
        body: bytes = answer.read(MAX_KEY_SET_BYTES)
    return body
