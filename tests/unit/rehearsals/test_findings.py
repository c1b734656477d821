"""The findings of a rehearsal stay small, whatever it finds."""

from datetime import timedelta

from nakadi.model.event_type import Position
from nakadi.rehearsals import findings
from nakadi.rehearsals.documents import Rehearsal, rehearsal_body, rehearsal_from_body
from nakadi.rehearsals.findings import FindingsCollector
from nakadi.rehearsals.history import Span
from nakadi.schemas.keywords import BrokenRule
from tests.support.builders import A_MOMENT


def add(collector: FindingsCollector, number: int, *rules: BrokenRule, publisher: str = "shop") -> None:
    collector.add_failure(0, Position(1, number), A_MOMENT + timedelta(seconds=number), publisher, rules)


def test_rules_have_their_first_and_last_time():
    """A rule has the first and the last time when an event that breaks it was stored, in whatever order the
    partitions are read. (H6)
    """
    collector = FindingsCollector()
    for number in (5, 1, 3):
        add(collector, number, BrokenRule("type", "#/a"))
    found = collector.findings

    [rule] = found.rules
    assert (rule.event_count, rule.first_at, rule.last_at) == (3, found.first_failed_at, found.last_failed_at)
    assert rule.last_at - rule.first_at == timedelta(seconds=4)


def test_there_is_room_for_a_hundred_rules_and_publishers():
    """Beyond a hundred rules, and a hundred publishers, further ones are counted together. (H6, H7)"""
    collector = FindingsCollector()
    for number in range(150):
        add(collector, number, BrokenRule("type", f"#/{'x' * number}"), publisher=f"app {number}")
    add(collector, 150, BrokenRule("type", "#/"), publisher="y" * 1000)
    found = collector.findings

    assert (len(found.rules), found.other_rule_count) == (findings.MAX_RULES, 50)
    assert (len(found.failed_by_publisher), found.other_publisher_count) == (findings.MAX_PUBLISHERS, 51)
    assert found.rules[0].event_count == 2


def test_a_rule_that_all_events_break_leaves_room_for_others():
    """A rule has at most five samples, and a rehearsal at most twenty. (H8)"""
    collector = FindingsCollector()
    for number in range(30):
        add(collector, number, BrokenRule("type", "#/a"))
    assert len(collector.findings.samples) == findings.MAX_SAMPLES_OF_RULE
    for number in range(30):
        add(collector, number, BrokenRule("type", "#/a"), BrokenRule("type", f"#/{'b' * number}"))

    assert len(collector.findings.samples) == findings.MAX_SAMPLES
    assert [len(each.rules) for each in collector.findings.samples[-2:]] == [2, 2]


def test_what_nobody_explains_is_counted(monkeypatch):
    """Finding out why events fail takes long, so it stops after a limit; further failing events are only counted.
    (H6)
    """
    monkeypatch.setattr(findings, "MAX_EXPLAINED_EVENTS", 2)
    collector = FindingsCollector()
    for number in range(5):
        add(collector, number, *([BrokenRule("type", "#/a")] if collector.findings.explains_more else []))

    found = collector.findings
    assert (found.failed_count, found.unexplained_count, found.rules[0].event_count) == (5, 3, 2)


def test_the_worst_findings_fit_a_document():
    """Findings with full counts and the longest strings fit into the 400 KB that a registry accepts."""
    collector = FindingsCollector()
    for number in range(200):
        rules = [BrokenRule("additionalProperties", f"#/{number}/{each}/{'x' * 300}") for each in range(20)]
        add(collector, number, *rules, publisher=f"{number}{'y' * 1000}")
    rehearsal = Rehearsal(
        id="an-id",
        event_type_id="another",
        span=Span(last="7d"),
        started_by="ann",
        started_at=A_MOMENT,
        updated_at=A_MOMENT,
        expected_count=1,
        findings=collector.findings,
    )
    body = rehearsal_body(rehearsal)

    assert len(str(body)) < 300_000
    assert rehearsal_from_body(body) == rehearsal
