"""Cooling: the hot half lets go of what the archive has."""

from __future__ import annotations

from datetime import datetime

from nakadi.model.moments import moment_of
from nakadi.ports import EventLog, LogIndex


def cool(hot: EventLog, index: LogIndex, topic: str, partition: int, before: datetime | None = None) -> bool:
    """Let the hot half go of what is archived and was stored before a moment; say whether anything archived is left.

    The last archived events stay: nothing that is not archived is older than they are, which is what makes this safe.
    """
    latest = moment_of(index.heads([(topic, partition)])[topic, partition].counted.latest)
    limit = latest if before is None else min(before, latest)
    if hot.offset_at(topic, partition, limit) > hot.bounds(topic, [partition])[partition].oldest:
        hot.trim(topic, partition, limit)
    return limit < latest
