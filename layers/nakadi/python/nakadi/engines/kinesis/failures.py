"""The failures of calls to Kinesis, distinguished by what the caller does next."""

from __future__ import annotations

import math

from nakadi.model.outcomes import Unavailable


class StreamCallFailed(Unavailable):
    """Raised if a call failed. `is_temporary`: the same call may soon succeed. `had_no_effect`: the call certainly had
    no effect.
    """

    def __init__(self, message: str, *, is_temporary: bool, had_no_effect: bool) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary
        self.had_no_effect = had_no_effect


class NoSuchShard(StreamCallFailed):
    """Raised if a shard or a consumer does not exist: the stream has forgotten the shard, or there is no such
    stream.
    """


class IteratorExpired(Exception):
    """Raised if a shard iterator is too old. Reading continues with a new one."""


class SequenceUnavailable(Exception):
    """Raised if a shard has nothing at the requested position: the position is too old, or belongs to another
    stream.
    """


class ShardBusy(Unavailable):
    """Raised at once instead of a call that would wait too long for its turn, since a shard answers few calls."""

    def __init__(self, shard: str, seconds: float) -> None:
        message = f"Shard {shard} has more to answer than it can; there is room in {seconds:.1f} s"
        super().__init__(message, retry_after_seconds=max(math.ceil(seconds), 1))
