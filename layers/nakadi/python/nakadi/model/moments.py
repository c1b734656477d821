"""Moments as whole microseconds, which every store can keep and compare."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def moment_of(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND
