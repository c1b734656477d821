"""The representation of resources in JSON."""

from datetime import UTC, datetime

from msgspec.structs import replace

from nakadi.http.views import event_type_view, timeline_view
from nakadi.model.event_type import Audience, OwnerSelector, OwnerSelectorType
from tests.support.builders import an_event_type

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_moments_of_timelines_end_in_their_offset():
    """The times of a timeline are in UTC, with a numeric offset. (R14, R240)"""
    timeline = replace(an_event_type().timeline, created_at=NOON, switched_at=NOON, cleaned_up_at=NOON)

    view = timeline_view(timeline, "order.created")

    assert {view[each] for each in ("created_at", "switched_at", "cleaned_up_at")} == {"2026-11-21T12:00:00.000+00:00"}


def test_members_that_may_be_missing_stand_before_the_moments():
    """The members of an event type have the same order, whether or not there is an audience or an owner selector.
    (R80)"""
    selector = OwnerSelector(type=OwnerSelectorType.STATIC, name="team", value="checkout")
    whole = event_type_view(an_event_type(audience=Audience.COMPANY_INTERNAL, event_owner_selector=selector))

    assert list(whole)[-5:] == ["compatibility_mode", "audience", "event_owner_selector", "updated_at", "created_at"]
    assert list(event_type_view(an_event_type()))[-3:] == ["compatibility_mode", "updated_at", "created_at"]
