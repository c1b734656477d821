"""What a session wants done; each is carried out whole, in order."""

from __future__ import annotations

from dataclasses import dataclass

from nakadi.model.cursor import Position
from nakadi.streaming.chunks import Run


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send events of a partition; `position` is the place of the last one."""

    partition: str
    position: Position
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class SendKeepAlive:
    """Tell the client that nothing new has come to a partition since `position`."""

    partition: str
    position: Position


@dataclass(frozen=True, slots=True)
class SendProblem:
    """Tell the client why there will be no more, in words."""

    error: Exception


Action = SendBatch | SendKeepAlive | SendProblem
