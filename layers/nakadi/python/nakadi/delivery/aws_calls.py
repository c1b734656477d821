"""The interface of calls to AWS services, which needs no SDK: what a caller passes, and how calls fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class CallFailed(Exception):
    """Raised for a call without a successful answer. `status` is the status of the answer, None if there was none.

    `blames_request`: the service rejects the content of the request; neither the caller's rights nor the timing is the
    cause. `may_have_arrived`: the request was sent, and its answer is lost.
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
        """Call a function with a client of the service. This blocks. Raises `CallFailed`."""

    def close(self) -> None:
        """Close all connections."""
