"""What becomes of a batch: everything is stored, or there is one result for each event.

A step that finds a fault in an event raises `BatchRejected`, and with that event the whole batch is given up. Only
the last step, storing, has results that differ from event to event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum, auto
from typing import Any

from msgspec import Struct

from nakadi.model.events import AppendResult, Refused
from nakadi.schemas.values import java_text


class PublishingStep(StrEnum):
    NONE = "none"
    VALIDATING = "validating"
    PARTITIONING = "partitioning"
    ENRICHING = "enriching"
    PUBLISHING = "publishing"


class PublishingStatus(StrEnum):
    SUBMITTED = "submitted"
    FAILED = "failed"
    ABORTED = "aborted"


class ItemResult(Struct, frozen=True, kw_only=True):
    """The members have the names, and the order, that clients know."""

    publishing_status: PublishingStatus
    detail: str = ""
    step: PublishingStep
    eid: str
    partition: str | None = None


class BatchStatus(Enum):
    STORED = auto()
    REJECTED = auto()
    NOT_ALL_STORED = auto()


class BatchOutcome(Struct, frozen=True):
    """`items` are empty when everything is stored: then there is nothing to tell about them but their number. `step` is
    the one that refused the batch."""

    status: BatchStatus
    items: tuple[ItemResult, ...] = ()
    stored_count: int = 0
    step: PublishingStep = PublishingStep.PUBLISHING


class BatchRejected(Exception):
    """Raised by a step that gives the batch up, because of the event `index` or, without one, as a whole.

    `prior_step` is the last step of the events that this step did not come to; `partitions` are those chosen so far.
    """

    def __init__(
        self,
        step: PublishingStep,
        index: int | None = None,
        detail: str = "",
        *,
        prior_step: PublishingStep = PublishingStep.NONE,
        partitions: Sequence[int] = (),
    ) -> None:
        super().__init__(detail)
        self.step = step
        self.index = index
        self.detail = detail
        self.prior_step = prior_step
        self.partitions = partitions


def outcome_of_rejection(events: Sequence[Mapping[str, Any]], rejection: BatchRejected) -> BatchOutcome:
    """The outcome of a batch of which nothing is stored, because of one of its events or as a whole."""
    items: list[ItemResult] = []
    for index, event in enumerate(events):
        at_fault = index == rejection.index
        came_to = rejection.index is not None and index <= rejection.index
        items.append(
            ItemResult(
                eid=eid_of(event),
                partition=str(rejection.partitions[index]) if index < len(rejection.partitions) else None,
                publishing_status=PublishingStatus.FAILED if at_fault else PublishingStatus.ABORTED,
                step=rejection.step if came_to else rejection.prior_step,
                detail=rejection.detail if at_fault else "",
            )
        )
    return BatchOutcome(BatchStatus.REJECTED, tuple(items), step=rejection.step)


def outcome_of_partial_append(
    events: Sequence[Mapping[str, Any]], partitions: Sequence[int], append_results: Mapping[int, AppendResult]
) -> BatchOutcome:
    refused: dict[int, str] = {}
    for partition, fate in append_results.items():
        if isinstance(fate, Refused):
            refused[partition] = fate.reason
    items: list[ItemResult] = []
    for event, partition in zip(events, partitions, strict=True):
        failed = partition in refused
        items.append(
            ItemResult(
                eid=eid_of(event),
                partition=str(partition),
                publishing_status=PublishingStatus.FAILED if failed else PublishingStatus.SUBMITTED,
                step=PublishingStep.PUBLISHING,
                detail=refused.get(partition, ""),
            )
        )
    return BatchOutcome(BatchStatus.NOT_ALL_STORED, tuple(items))


def eid_of(event: Mapping[str, Any]) -> str:
    metadata = event.get("metadata")
    eid = metadata.get("eid") if isinstance(metadata, dict) else None
    return "" if eid is None else java_text(eid)
