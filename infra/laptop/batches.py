"""What becomes of a batch of a stream's records after an invocation: the rules of an event source mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.laptop.templates import Properties


@dataclass(frozen=True, slots=True)
class Arrived:
    """A record of a shard; the time is in seconds since 1970."""

    sequence: str
    partition_key: str
    data: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in their order, and how often an invocation has failed for these very ones."""

    records: tuple[Arrived, ...]
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    size: int
    window_seconds: float
    retries: int  # -1: until the records expire
    bisects: bool
    reports_failures: bool
    longest_age_seconds: int  # -1: as old as the stream lets them become
    destination: str

    @classmethod
    def of(cls, mapping: Properties) -> Rules:
        return cls(
            size=mapping.get("BatchSize", 100),
            window_seconds=mapping.get("MaximumBatchingWindowInSeconds", 0),
            retries=mapping.get("MaximumRetryAttempts", -1),
            bisects=mapping.get("BisectBatchOnFunctionError", False),
            reports_failures="ReportBatchItemFailures" in mapping.get("FunctionResponseTypes", []),
            longest_age_seconds=mapping.get("MaximumRecordAgeInSeconds", -1),
            destination=mapping.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination", ""),
        )


@dataclass(frozen=True, slots=True)
class Next:
    """The batches to go on with, in order, and those records that will not be tried again."""

    batches: tuple[Batch, ...] = ()
    set_aside: Batch | None = None


def failed(batch: Batch, rules: Rules) -> Next:
    """An invocation ended in an error. Splitting does not count as another try."""
    records = batch.records
    if rules.bisects and len(records) > 1:
        half = len(records) // 2
        return Next((Batch(records[:half], batch.failures), Batch(records[half:], batch.failures)))
    return _again(batch, rules)


def answered(batch: Batch, answer: Any, rules: Rules) -> Next:
    """An invocation ended well. Where failures are reported, what lies before the first of them is done."""
    if not rules.reports_failures:
        return Next()
    reported = _reported(answer)
    if not reported:
        return Next()
    sequences = [record.sequence for record in batch.records]
    if not set(reported) <= set(sequences):
        return failed(batch, rules)
    first = min(sequences.index(each) for each in reported)
    if first:
        return Next((Batch(batch.records[first:]),))
    return _again(batch, rules)


def too_old(batch: Batch, rules: Rules, now: float) -> Next:
    """Records that have become too old are set aside, the rest goes on."""
    if rules.longest_age_seconds < 0:
        return Next((batch,))
    fresh = tuple(each for each in batch.records if now - each.at <= rules.longest_age_seconds)
    old = tuple(each for each in batch.records if now - each.at > rules.longest_age_seconds)
    return Next((Batch(fresh, batch.failures),) if fresh else (), Batch(old, batch.failures) if old else None)


def _again(batch: Batch, rules: Rules) -> Next:
    failures = batch.failures + 1
    if 0 <= rules.retries < failures:
        return Next(set_aside=Batch(batch.records, failures))
    return Next((Batch(batch.records, failures),))


def _reported(answer: Any) -> Sequence[str]:
    if not isinstance(answer, Mapping):
        return []
    return [str(each.get("itemIdentifier")) for each in answer.get("batchItemFailures") or []]
