"""Checks of the fields of a requested subscription, and the meaning of its annotations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict

from nakadi.auth import authorization
from nakadi.event_types.annotations import annotation_violations, label_violations
from nakadi.model.annotations import POLICY_ANNOTATION, SEND_COUNT_ANNOTATION
from nakadi.model.objective import MAX_OBJECTIVE_PERCENT, MAX_OBJECTIVE_SECONDS, Objective
from nakadi.model.outcomes import Violation, Violations
from nakadi.model.subscription import ObjectiveDraft, PartitionAssignment, SubscriptionDraft
from nakadi.openapi.checks import openapi_violations
from nakadi.schemas.read_paths import BadReadPath, parse_read_path

UNPROCESSABLE_POLICIES = ("SKIP_EVENT", "DEAD_LETTER_QUEUE", "PARK_KEY")
MAX_READ_PATH_CHARACTERS = 1000
VALID_SEND_COUNTS = range(2, 11)

_INTEGER_PATTERN = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


def check_fields(draft: SubscriptionDraft) -> None:
    annotations = draft.annotations or {}
    found = (
        *openapi_violations("SubscriptionDraft", _body_from_draft(draft)),
        *annotation_violations(annotations),
        # Only the first mistake in the two annotations for unprocessable events is reported.
        *islice(unprocessable_event_annotation_violations(annotations), 1),
        *label_violations(draft.labels or {}),
        *read_path_violations(draft),
        *(() if draft.objective is None else objective_violations(draft.objective, "objective.")),
    )
    if found:
        raise Violations(found)


def _body_from_draft(draft: SubscriptionDraft) -> dict[str, Any]:
    """The draft in the form that the API description gives it."""
    return {
        "owning_application": draft.owning_application,
        "event_types": draft.event_types,
        "consumer_group": draft.consumer_group,
        "read_from": draft.read_from,
        "initial_cursors": [asdict(each) for each in draft.initial_cursors],
        "authorization": authorization.authorization_body(draft.authorization),
        **({} if draft.reads in (None, UNSET) else {"reads": draft.reads}),
    }


def objective_violations(draft: ObjectiveDraft, path: str = "") -> Iterator[Violation]:
    """The violations of an objective, which is at `path` in the request."""
    if draft.percent is None or not 0 < draft.percent <= MAX_OBJECTIVE_PERCENT:
        yield Violation(f"{path}percent", f"must be above 0 and at most {MAX_OBJECTIVE_PERCENT}")
    if draft.within_seconds is None or not 1 <= draft.within_seconds <= MAX_OBJECTIVE_SECONDS:
        yield Violation(f"{path}within_seconds", f"must be from 1 to {MAX_OBJECTIVE_SECONDS}")


def objective_from_draft(draft: ObjectiveDraft, now: datetime) -> Objective:
    """The objective of a draft without violations."""
    assert draft.percent is not None
    assert draft.within_seconds is not None
    return Objective(draft.percent, draft.within_seconds, now)


def read_path_violations(draft: SubscriptionDraft) -> Iterator[Violation]:
    """The violations of declared paths that are not valid paths."""
    for index, text in enumerate(draft.reads or ()):
        try:
            # Checks against the API description report empty and too long paths.
            if text and len(text) <= MAX_READ_PATH_CHARACTERS:
                parse_read_path(text)
        except BadReadPath as error:
            yield Violation(f"reads[{index}]", str(error))


def unprocessable_event_annotation_violations(annotations: Mapping[str, str | None]) -> Iterator[Violation]:
    """The violations of the two annotations for unprocessable events, of which both must be set, or neither."""
    count, policy = annotations.get(SEND_COUNT_ANNOTATION), annotations.get(POLICY_ANNOTATION)
    if count is not None:
        yield from _send_count_violations(count)
        if policy is None:
            yield Violation("annotations", f"{POLICY_ANNOTATION} must be also set when setting {SEND_COUNT_ANNOTATION}")
    if policy is not None:
        if policy not in UNPROCESSABLE_POLICIES:
            yield Violation("annotations", f"{POLICY_ANNOTATION} must be one of: {', '.join(UNPROCESSABLE_POLICIES)}")
        if count is None:
            yield Violation("annotations", f"{SEND_COUNT_ANNOTATION} must be also set when setting {POLICY_ANNOTATION}")


def _send_count_violations(count: str) -> Iterator[Violation]:
    if not _INTEGER_PATTERN.fullmatch(count):
        yield Violation("annotations", f"{SEND_COUNT_ANNOTATION} must be an integer")
    elif int(count) not in VALID_SEND_COUNTS:
        yield Violation("annotations", f"{SEND_COUNT_ANNOTATION} must be between 2 and 10")


class UnprocessablePolicy(StrEnum):
    SKIP_EVENT = "SKIP_EVENT"
    DEAD_LETTER_QUEUE = "DEAD_LETTER_QUEUE"
    PARK_KEY = "PARK_KEY"


class RetryPolicy(Struct, frozen=True):
    """What happens when consumers fail: after this number of streams that ended without a commit, the broker looks for
    the failing event; after as many further failures of that event, it applies the policy to it.
    """

    kind: UnprocessablePolicy
    max_failed_streams: int

    @property
    def parks_keys(self) -> bool:
        return self.kind is UnprocessablePolicy.PARK_KEY


def retry_policy_from_annotations(annotations: Mapping[str, str | None]) -> RetryPolicy | None:
    """The policy that a subscription's annotations ask for; the annotations were checked when they were set."""
    kind, fails = annotations.get(POLICY_ANNOTATION), annotations.get(SEND_COUNT_ANNOTATION)
    return RetryPolicy(UnprocessablePolicy(kind), int(fails)) if kind and fails else None


def failed_partitions_text(entries: Iterable[PartitionAssignment]) -> str:
    """The failing partitions, in the words that clients are used to; empty if there are none."""
    troubled = [entry for entry in entries if entry.failed_streams or entry.search_end is not None]
    told = ", ".join(
        f"{entry.partition.event_type}:{entry.partition.partition} failedCommitsCount={entry.failed_streams} "
        f"lastDeadLetterOffset={'null' if entry.search_end is None else entry.search_end}"
        for entry in troubled
    )
    return f"Auto DLQ failed commits tracking: {{{told}}}" if told else ""
