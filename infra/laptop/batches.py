"""The rules of an event source mapping: what to do with a batch of records after an invocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.laptop.templates import Properties


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a shard. `at` is its arrival in seconds since 1970."""

    sequence: str
    partition_key: str
    data: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in order, and the number of failed invocations with exactly these records."""

    records: tuple[Record, ...]
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingRules:
    size: int
    window_seconds: float
    retries: int  # -1: until the records expire
    bisects_batches: bool
    reports_failures: bool
    max_age_seconds: int  # -1: until the records expire
    destination: str

    @classmethod
    def of(cls, mapping: Properties) -> MappingRules:
        return cls(
            size=mapping.get("BatchSize", 100),
            window_seconds=mapping.get("MaximumBatchingWindowInSeconds", 0),
            retries=mapping.get("MaximumRetryAttempts", -1),
            bisects_batches=mapping.get("BisectBatchOnFunctionError", False),
            reports_failures="ReportBatchItemFailures" in mapping.get("FunctionResponseTypes", []),
            max_age_seconds=mapping.get("MaximumRecordAgeInSeconds", -1),
            destination=mapping.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination", ""),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The batches to process next, in order, and the records to abandon."""

    batches: tuple[Batch, ...] = ()
    abandoned: Batch | None = None


def plan_after_failure(batch: Batch, rules: MappingRules) -> Plan:
    """The plan after a failed invocation. Splitting a batch does not count as an attempt."""
    records = batch.records
    if rules.bisects_batches and len(records) > 1:
        half = len(records) // 2
        return Plan((Batch(records[:half], batch.failures), Batch(records[half:], batch.failures)))
    return _retry_plan(batch, rules)


def plan_after_answer(batch: Batch, answer: Any, rules: MappingRules) -> Plan:
    """The plan after a successful invocation. If the answer reports failed records, those before the first of them are
    done.
    """
    if not rules.reports_failures:
        return Plan()
    reported = _failed_sequences(answer)
    if not reported:
        return Plan()
    sequences = [record.sequence for record in batch.records]
    if not set(reported) <= set(sequences):
        return plan_after_failure(batch, rules)
    first = min(sequences.index(each) for each in reported)
    if first:
        return Plan((Batch(batch.records[first:]),))
    return _retry_plan(batch, rules)


def drop_expired(batch: Batch, rules: MappingRules, now: float) -> Plan:
    """Abandon the records that are too old, and continue with the others."""
    if rules.max_age_seconds < 0:
        return Plan((batch,))
    fresh = tuple(each for each in batch.records if now - each.at <= rules.max_age_seconds)
    old = tuple(each for each in batch.records if now - each.at > rules.max_age_seconds)
    return Plan((Batch(fresh, batch.failures),) if fresh else (), Batch(old, batch.failures) if old else None)


def _retry_plan(batch: Batch, rules: MappingRules) -> Plan:
    failures = batch.failures + 1
    if 0 <= rules.retries < failures:
        return Plan(abandoned=Batch(batch.records, failures))
    return Plan((Batch(batch.records, failures),))


def _failed_sequences(answer: Any) -> Sequence[str]:
    if not isinstance(answer, Mapping):
        return []
    return [str(each.get("itemIdentifier")) for each in answer.get("batchItemFailures") or []]
