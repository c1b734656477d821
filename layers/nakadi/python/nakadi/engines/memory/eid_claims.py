"""Claims on ids of events, in memory."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from nakadi.model.outcomes import Unavailable
from nakadi.ports.eid_claims import EidClaim


class MemoryEidClaims:
    """Claims in memory, which end with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The claims are in the order in which they were written, so that the oldest come first.
        self._claims: dict[bytes, EidClaim] = {}
        self._closed = False

    def claim(self, wanted: Sequence[EidClaim]) -> Mapping[bytes, EidClaim]:
        standing: dict[bytes, EidClaim] = {}
        with self._lock:
            self._check_open()
            for claim in wanted:
                self._forget_expired(claim)
                found = self._claims.setdefault(claim.key, claim)
                if found.token != claim.token:
                    standing[claim.key] = found
        return standing

    def replace(self, changes: Sequence[tuple[EidClaim, EidClaim]]) -> Collection[bytes]:
        replaced: list[bytes] = []
        with self._lock:
            self._check_open()
            for old, new in changes:
                found = self._claims.get(old.key)
                if found in (old, new):
                    del self._claims[old.key]
                    self._claims[new.key] = new
                    replaced.append(new.key)
        return replaced

    def remove(self, claims: Sequence[EidClaim]) -> None:
        with self._lock:
            self._check_open()
            for claim in claims:
                found = self._claims.get(claim.key)
                if found is not None and found.token == claim.token:
                    del self._claims[claim.key]

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The claims are closed.")

    def _forget_expired(self, newer: EidClaim) -> None:
        while self._claims and (oldest := next(iter(self._claims.values()))).expires_at <= newer.since:
            del self._claims[oldest.key]
