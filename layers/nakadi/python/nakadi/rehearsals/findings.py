"""The findings of a rehearsal: how many events fail, by rule and by publisher, and some of these events.

However many events, rules and publishers there are, the findings stay small: they are a document of the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from nakadi.model.event_type import Position
from nakadi.schemas.keywords import BrokenRule

MAX_RULES = 100
MAX_PUBLISHERS = 100
MAX_PUBLISHER_CHARACTERS = 200
MAX_SAMPLES = 20
# How many samples each rule may have, so that a rule that every event breaks leaves room for others.
MAX_SAMPLES_OF_RULE = 5
MAX_RULES_OF_SAMPLE = 10
# Finding the reason of a failure takes twenty times as long as noticing the failure: ten seconds for this number of
# events.
MAX_EXPLAINED_EVENTS = 200_000


class RuleCount(Struct, kw_only=True):
    """The number of events that break a rule, and the times at which the first and the last were stored."""

    rule: str
    path: str
    event_count: int = 0
    first_at: datetime
    last_at: datetime


class Sample(Struct, frozen=True, kw_only=True):
    """A failing event: its position, and the rules that it breaks. Its text stays in the log."""

    partition: int
    position: Position
    stored_at: datetime
    rules: tuple[tuple[str, str], ...]


class Findings(Struct, kw_only=True):
    """`unexplained_count` is the number of failing events that no rule's count includes. `other_rule_count` counts how
    often an event broke a rule for which there was no room, and `other_publisher_count` the failing events of other
    publishers. The publisher of an event is empty if the event does not name one.
    """

    seen_count: int = 0
    failed_count: int = 0
    unexplained_count: int = 0
    first_failed_at: datetime | None = None
    last_failed_at: datetime | None = None
    rules: list[RuleCount] = field(default_factory=list)
    other_rule_count: int = 0
    failed_by_publisher: dict[str, int] = field(default_factory=dict)
    other_publisher_count: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def explains_more(self) -> bool:
        """Whether to find the broken rules of further events."""
        return self.failed_count - self.unexplained_count < MAX_EXPLAINED_EVENTS


class FindingsCollector:
    """Adds failing events to findings."""

    def __init__(self) -> None:
        self.findings = Findings()
        self._counts: dict[BrokenRule, RuleCount] = {}
        self._samples_of_rule: dict[BrokenRule, int] = {}

    def add_failure(
        self, partition: int, position: Position, stored_at: datetime, publisher: str, rules: Sequence[BrokenRule]
    ) -> None:
        """Count an event that fails. Without rules, it counts as unexplained."""
        found = self.findings
        found.failed_count += 1
        found.first_failed_at = min(found.first_failed_at or stored_at, stored_at)
        found.last_failed_at = max(found.last_failed_at or stored_at, stored_at)
        self._count_publisher(publisher[:MAX_PUBLISHER_CHARACTERS])
        if not rules:
            found.unexplained_count += 1
            return
        for each in rules:
            self._count_rule(each, stored_at)
        self._keep_sample(partition, position, stored_at, rules)

    def _count_publisher(self, publisher: str) -> None:
        counts: dict[str, int] = self.findings.failed_by_publisher
        if publisher in counts or len(counts) < MAX_PUBLISHERS:
            counts[publisher] = counts.get(publisher, 0) + 1
        else:
            self.findings.other_publisher_count += 1

    def _count_rule(self, broken: BrokenRule, stored_at: datetime) -> None:
        count = self._counts.get(broken)
        if count is None:
            if len(self._counts) == MAX_RULES:
                self.findings.other_rule_count += 1
                return
            count = RuleCount(rule=broken.rule, path=broken.path, first_at=stored_at, last_at=stored_at)
            self._counts[broken] = count
            self.findings.rules.append(count)
        count.event_count += 1
        count.first_at, count.last_at = min(count.first_at, stored_at), max(count.last_at, stored_at)

    def _keep_sample(
        self, partition: int, position: Position, stored_at: datetime, rules: Sequence[BrokenRule]
    ) -> None:
        kept: Mapping[BrokenRule, int] = self._samples_of_rule
        if len(self.findings.samples) == MAX_SAMPLES or all(
            kept.get(each, 0) == MAX_SAMPLES_OF_RULE for each in rules[:MAX_RULES_OF_SAMPLE]
        ):
            return
        shown = tuple((each.rule, each.path) for each in rules[:MAX_RULES_OF_SAMPLE])
        self.findings.samples.append(Sample(partition=partition, position=position, stored_at=stored_at, rules=shown))
        for each in rules[:MAX_RULES_OF_SAMPLE]:
            self._samples_of_rule[each] = min(MAX_SAMPLES_OF_RULE, kept.get(each, 0) + 1)
