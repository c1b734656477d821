"""GET /subscriptions/{id}/stats, without streams."""

from tests.support.api import create_event_type, problem
from tests.support.subscriptions import a_cursor, create_subscription, publish, reset


def read_stats(api, subscription, **query):
    answer = api.get(f"/subscriptions/{subscription['id']}/stats", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


def test_nothing_is_counted_before_the_first_stream(api):
    """Every partition is listed; without offsets, it has no count and no reader. (S280, S282, S283, S284, S285)"""
    name = create_event_type(api)["name"]
    publish(api, name, 3)
    [found] = read_stats(api, create_subscription(api, name), show_time_lag=True)
    assert found == {
        "event_type": name,
        "partitions": [{"partition": "0", "state": "unassigned", "stream_id": ""}],
    }


def test_events_are_counted_from_the_committed_offset(api):
    """Events after the committed offset are unconsumed, as of now. (S285)"""
    name = create_event_type(api)["name"]
    publish(api, name, 15)
    subscription = create_subscription(api, name, read_from="begin")
    reset(api, subscription)
    for offset, wanted in ((None, 15), (9, 5), (14, 0), ("BEGIN", 15)):
        if offset is not None:
            reset(api, subscription, a_cursor(name, "0", offset))
        [found] = read_stats(api, subscription)
        assert found["partitions"][0]["unconsumed_events"] == wanted
    publish(api, name, 2)
    assert read_stats(api, subscription)[0]["partitions"][0]["unconsumed_events"] == 17


def test_event_types_and_partitions_are_in_the_order_of_texts(api):
    """There is one entry for each event type, sorted by name; partitions are sorted as strings. (S281, S305)"""
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 3, "write_parallelism": 3}
    names = sorted(create_event_type(api, default_statistic=statistic)["name"] for _ in range(3))
    found = read_stats(api, create_subscription(api, *reversed(names)))
    assert [each["event_type"] for each in found] == names
    assert [[each["partition"] for each in one["partitions"]] for one in found] == [["0", "1", "2"]] * 3


def test_lag_in_seconds_is_reported_when_asked_for(api):
    """With `show_time_lag`, the age of the first unconsumed event is reported in whole seconds, or 0 if there is none.
    (S287)"""
    name = create_event_type(api)["name"]
    subscription = create_subscription(api, name)
    reset(api, subscription)
    assert read_stats(api, subscription, show_time_lag=True)[0]["partitions"][0]["consumer_lag_seconds"] == 0
    publish(api, name, 1)
    assert read_stats(api, subscription, show_time_lag=True)[0]["partitions"][0]["consumer_lag_seconds"] in (0, 1, 2)
    assert "consumer_lag_seconds" not in read_stats(api, subscription)[0]["partitions"][0]


def test_subscriptions_have_to_exist(api):
    """An unknown id gets 404. (S60, S289)"""
    told = problem(api.get("/subscriptions/unknown/stats"), 404)
    assert told == 'Subscription with id "unknown" does not exist'


def test_flags_have_to_be_flags(api):
    """A flag that is neither true nor false gets 400. (S42)"""
    subscription = create_subscription(api)
    problem(api.get(f"/subscriptions/{subscription['id']}/stats", params={"show_time_lag": "perhaps"}), 400)
