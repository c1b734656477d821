"""Stored events are checked as publishing would have checked them."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from nakadi.model.event_type import Category, CompatibilityMode, EventType
from nakadi.rehearsals.judge import MOMENT_RULE, TOO_MUCH_WORK_RULE, EventJudge, make_judge
from tests.support.builders import a_schema, an_event_type
from tests.support.publishing import a_business_type, metadata

STAMP = {"published_by": "shop", "received_at": "2026-11-21T12:00:00.000Z", "version": "1.0.0", "partition": "0"}


def judge_of(event_type: EventType, schema: Any, **changes: Any) -> EventJudge:
    proposed = replace(event_type, schema=a_schema(json.dumps(schema)), **changes)
    return make_judge(event_type, proposed, lambda: False)


def failures(judge: EventJudge, *events: Any) -> dict[int, list[str]]:
    """The broken rules of each failing event, by its index."""
    found = judge.find_failures([json.dumps(each).encode() for each in events])
    return {each.index: [f"{rule} {path}" for rule, path in judge.broken_rules(each)] for each in found}


@pytest.mark.parametrize("mode", CompatibilityMode)
def test_what_the_broker_has_added_is_not_judged(mode):
    """An event that was published under the schema passes, even though its metadata now have more members. (H5)"""
    business = a_business_type(compatibility_mode=mode)
    stored = {"metadata": metadata(**STAMP, event_type=business.name, flow_id="a"), "a": 1}
    judge = judge_of(business, {"type": "object", "properties": {"a": {"type": "integer"}}})

    assert failures(judge, stored) == {}
    assert failures(judge, stored, {**stored, "a": "1"}) == {1: ["type #/a"]}
    other = {**stored["metadata"], "more": "1"}
    assert failures(judge, {**stored, "metadata": other}) == {0: ["additionalProperties #/metadata/more"]}


def test_the_publisher_is_known():
    """The publisher is the one in the metadata, even if the metadata is not checked; a client's own value may be
    anything. (H7)"""
    business = a_business_type()
    events = [{"metadata": metadata(**STAMP)}, {"metadata": metadata(published_by=7)}, {"metadata": 1}, {}]
    for category in (Category.BUSINESS, Category.UNDEFINED):
        judge = judge_of(business, {"required": ["a"]}, category=category)
        found = list(judge.find_failures([json.dumps(each).encode() for each in events]))
        assert [each.publisher for each in found] == ["shop", "", "", ""]


def test_a_moment_that_is_none_fails():
    """Publishing checks `occurred_at` in addition to the schema, and so does a rehearsal. (H5)"""
    judge = judge_of(a_business_type(), {})
    stored = {"metadata": metadata(**STAMP) | {"occurred_at": "yesterday"}}
    [failure] = judge.find_failures([json.dumps(stored).encode()])

    assert judge.broken_rules(failure) == (MOMENT_RULE,)


def test_data_change_events_are_judged_in_their_envelope():
    """The path of a broken rule includes the members of the envelope. (H6)"""
    data = a_business_type(category=Category.DATA)
    stored = {"metadata": metadata(**STAMP), "data_type": "order", "data_op": "C", "data": {"a": [1, "b"]}}
    judge = judge_of(data, {"properties": {"a": {"items": {"type": "integer"}}}})

    assert failures(judge, stored, {**stored, "data_op": "X"}) == {
        0: ["type #/data/a/*"],
        1: ["enum #/data_op", "type #/data/a/*"],
    }


def test_an_event_that_takes_too_much_work_fails(monkeypatch):
    """If publishing would refuse an event because of the work that it causes, a rehearsal refuses it after the same
    work. (H5)
    """
    monkeypatch.setattr("nakadi.rehearsals.judge.MAX_BATCH_STEPS", 1000)
    monkeypatch.setattr("nakadi.rehearsals.judge.MAX_STEPS", 1000)
    judge = judge_of(an_event_type(), {"properties": {"a": {"uniqueItems": True, "items": {"type": "object"}}}})
    [failure] = judge.find_failures([json.dumps({"a": [{"b": [number]} for number in range(2000)]}).encode()])

    assert judge.broken_rules(failure) == (TOO_MUCH_WORK_RULE,)


def test_a_schema_whose_parts_need_whole_objects_is_judged_too():
    """If a part of the schema needs whole objects, the events are parsed, and the verdicts are the same. (H5)"""
    judge = judge_of(a_business_type(), {"type": "object", "properties": {"a": {}}, "minProperties": 2})
    stored = {"metadata": metadata(**STAMP), "a": 1}

    assert failures(judge, stored) == {}
    assert failures(judge, stored, {"metadata": stored["metadata"]}) == {1: ["minProperties #"]}
