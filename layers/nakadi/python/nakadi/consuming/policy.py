"""What a subscription does about events that its consumers fail at again and again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nakadi.model.coordination import Entry

MOST_FAILS = "nakadi.zalando.org/subscription-max-event-send-count"
POLICY = "nakadi.zalando.org/subscription-unprocessable-event-policy"


class Unprocessable(StrEnum):
    SKIP_EVENT = "SKIP_EVENT"
    DEAD_LETTER_QUEUE = "DEAD_LETTER_QUEUE"
    PARK_KEY = "PARK_KEY"


@dataclass(frozen=True, slots=True)
class Policy:
    """After `most_fails` streams that ended without a commit the event is looked for, and after as many dealt with."""

    kind: Unprocessable
    most_fails: int

    @property
    def parks(self) -> bool:
        return self.kind is Unprocessable.PARK_KEY


def policy_of(annotations: Mapping[str, str | None]) -> Policy | None:
    """The policy that a subscription's annotations ask for; they were checked when they were set."""
    kind, fails = annotations.get(POLICY), annotations.get(MOST_FAILS)
    return Policy(Unprocessable(kind), int(fails)) if kind and fails else None


def tracking(entries: Iterable[Entry]) -> str:
    """The partitions that consumers fail at, in the words that clients are used to; nothing if there are none."""
    troubled = [entry for entry in entries if entry.fails or entry.search_end is not None]
    told = ", ".join(
        f"{entry.place.event_type}:{entry.place.partition} failedCommitsCount={entry.fails} "
        f"lastDeadLetterOffset={'null' if entry.search_end is None else entry.search_end}"
        for entry in troubled
    )
    return f"Auto DLQ failed commits tracking: {{{told}}}" if told else ""
