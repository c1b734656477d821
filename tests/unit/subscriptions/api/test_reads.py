"""Finding the members that misspelled paths may mean."""

from difflib import SequenceMatcher

from nakadi.subscriptions.api.reads import MAX_CLOSELY_COMPARED_MEMBERS, MAX_NAMED_PATHS
from tests.support.api import create_event_type, violations
from tests.support.subscriptions import a_request


def test_few_members_are_compared_closely(house, monkeypatch):
    """Comparing with many long, similar names does not take half a minute, and the nearest one is found. (D3)"""
    members = [f"n{number:04}" + "y" * 80 for number in range(200)]
    name = create_event_type(house.api, schema={"properties": {each: {} for each in members}})["name"]
    compared = []
    ratio = SequenceMatcher.ratio
    monkeypatch.setattr(SequenceMatcher, "ratio", lambda matcher: compared.append(matcher) or ratio(matcher))

    answer = house.api.post("/subscriptions", json=a_request(name, reads=[f"{each}z" for each in members]))

    assert f'Field "reads[0]" `{members[0]}z` is in no schema of the event types; the nearest is `{members[0]}`' in (
        violations(answer)
    )
    # difflib compares a good match twice.
    assert len(compared) <= 2 * MAX_CLOSELY_COMPARED_MEMBERS * MAX_NAMED_PATHS
