"""Calls to services of AWS, without their SDK: what a caller needs, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class CallFailed(Exception):
    """Raised for a call without a good answer. `status` is the status of the answer, None if there was none.

    `blames_request`: the service refuses what it was sent, and not the caller, or this moment.
    `may_have_arrived`: the request was sent, and its answer is lost.
    """

    def __init__(
        self, text: str, *, status: int | None = None, blames_request: bool = False, may_have_arrived: bool = False
    ) -> None:
        super().__init__(text)
        self.status = status
        self.blames_request = blames_request
        self.may_have_arrived = may_have_arrived


class AwsCalls(Protocol):
    def call(self, service: str, region: str, read_timeout: float, call: Callable[[Any], T]) -> T:
        """Call with a client of a service. It blocks. Raises `CallFailed`."""

    def close(self) -> None:
        """Close all connections."""
