"""What is missing or malformed in the fields of a subscription that somebody asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice

from msgspec import Struct

from nakadi.auth import permissions
from nakadi.event_types.drafts import annotation_violations, label_violations
from nakadi.model.coordination import Entry
from nakadi.model.outcomes import Violation, Violations
from nakadi.model.sizes import MOST_NAMES, size_violations
from nakadi.model.subscription import SubscriptionCursorDraft, SubscriptionDraft

NOT_NULL = "must not be null"
NOT_EMPTY = "must contain at least one character"

SEND_COUNT = "nakadi.zalando.org/subscription-max-event-send-count"
POLICY = "nakadi.zalando.org/subscription-unprocessable-event-policy"
POLICIES = ("SKIP_EVENT", "DEAD_LETTER_QUEUE", "PARK_KEY")
SEND_COUNTS = range(2, 11)

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


def check_fields(draft: SubscriptionDraft) -> None:
    found = tuple(_violations(draft))
    if found:
        raise Violations(found)


def _violations(draft: SubscriptionDraft) -> Iterator[Violation]:
    yield from _text_violations("owning_application", draft.owning_application)
    if draft.event_types is None:
        yield Violation("event_types", NOT_NULL)
    elif not draft.event_types:
        yield Violation("event_types", "must contain at least one element")
    yield from size_violations("event_types", draft.event_types, MOST_NAMES)
    yield from _text_violations("consumer_group", draft.consumer_group)
    if draft.read_from is None:
        yield Violation("read_from", NOT_NULL)
    for index, cursor in enumerate(draft.initial_cursors):
        yield from cursor_violations(cursor, f"initial_cursors[{index}]")
    if draft.authorization is not None:
        yield from permissions.authorization_violations(draft.authorization, permissions.SUBSCRIPTION_LISTS)
    yield from annotation_violations(draft.annotations or {})
    # Of these two annotations clients are told one mistake at a time.
    yield from islice(policy_violations(draft.annotations or {}), 1)
    yield from label_violations(draft.labels or {})


def cursor_violations(cursor: SubscriptionCursorDraft, path: str) -> Iterator[Violation]:
    if cursor.event_type is None:
        yield Violation(f"{path}.event_type", NOT_NULL)
    for name in ("partition", "offset"):
        text = getattr(cursor, name)
        if not text:
            yield Violation(f"{path}.{name}", NOT_NULL if text is None else f"cursor {name} cannot be empty")
    for name in ("event_type", "partition", "offset"):
        yield from size_violations(f"{path}.{name}", getattr(cursor, name))


def policy_violations(annotations: Mapping[str, str | None]) -> Iterator[Violation]:
    """The two annotations that say what becomes of events which nobody can process: both are there, or neither."""
    count, policy = annotations.get(SEND_COUNT), annotations.get(POLICY)
    if count is not None:
        yield from _count_violations(count)
        if policy is None:
            yield Violation("annotations", f"{POLICY} must be also set when setting {SEND_COUNT}")
    if policy is not None:
        if policy not in POLICIES:
            yield Violation("annotations", f"{POLICY} must be one of: {', '.join(POLICIES)}")
        if count is None:
            yield Violation("annotations", f"{SEND_COUNT} must be also set when setting {POLICY}")


def _count_violations(count: str) -> Iterator[Violation]:
    if not _INTEGER.fullmatch(count):
        yield Violation("annotations", f"{SEND_COUNT} must be an integer")
    elif int(count) not in SEND_COUNTS:
        yield Violation("annotations", f"{SEND_COUNT} must be between 2 and 10")


def _text_violations(path: str, text: str | None) -> Iterator[Violation]:
    if text is None:
        yield Violation(path, NOT_NULL)
    elif not text:
        yield Violation(path, NOT_EMPTY)
    yield from size_violations(path, text)


# The policy for unprocessable events ----------------------------------------------------------------------------------


class UnprocessablePolicy(StrEnum):
    SKIP_EVENT = "SKIP_EVENT"
    DEAD_LETTER_QUEUE = "DEAD_LETTER_QUEUE"
    PARK_KEY = "PARK_KEY"


class RetryPolicy(Struct, frozen=True):
    """After `most_fails` streams that ended without a commit the event is looked for, and after as many dealt with."""

    kind: UnprocessablePolicy
    most_fails: int

    @property
    def parks(self) -> bool:
        return self.kind is UnprocessablePolicy.PARK_KEY


def policy_of(annotations: Mapping[str, str | None]) -> RetryPolicy | None:
    """The policy that a subscription's annotations ask for; they were checked when they were set."""
    kind, fails = annotations.get(POLICY), annotations.get(SEND_COUNT)
    return RetryPolicy(UnprocessablePolicy(kind), int(fails)) if kind and fails else None


def failure_info(entries: Iterable[Entry]) -> str:
    """The partitions that consumers fail at, in the words that clients are used to; nothing if there are none."""
    troubled = [entry for entry in entries if entry.fails or entry.search_end is not None]
    told = ", ".join(
        f"{entry.place.event_type}:{entry.place.partition} failedCommitsCount={entry.fails} "
        f"lastDeadLetterOffset={'null' if entry.search_end is None else entry.search_end}"
        for entry in troubled
    )
    return f"Auto DLQ failed commits tracking: {{{told}}}" if told else ""
