"""The routes of a broker, all of them and by area."""

import pytest

from nakadi.app.broker import open_broker
from nakadi.app.routes import CHANGING_AREAS, ROUTE_MAKER_BY_AREA, make_application, make_routes
from nakadi.app.settings import Settings


@pytest.fixture(scope="module")
def broker():
    broker = open_broker(Settings())
    yield broker
    broker.close()


def operations(broker, *areas):
    return [route.operation for route in make_routes(broker, *areas)]


def test_areas_make_up_the_whole(broker):
    """Every operation belongs to exactly one area."""
    whole = [route.operation for route in make_application(broker).router.routes]

    assert sorted(operation for area in ROUTE_MAKER_BY_AREA for operation in operations(broker, area)) == sorted(whole)
    assert len(set(whole)) == len(whole)


def test_what_is_audited_belongs_to_areas_that_change_something(broker):
    """An area that is loaded without the audit log has no operation that the audit log should record."""
    changing = {operation for area in CHANGING_AREAS for operation in operations(broker, area)}

    assert set(broker.audit.audited_operations) <= changing


def test_an_application_of_some_areas_has_their_routes_alone(broker):
    """An application for some of the areas has the routes of these areas, and no others."""
    application = make_application(broker, "publishing", "cursors")

    assert [route.operation for route in application.router.routes] == operations(broker, "publishing", "cursors")
