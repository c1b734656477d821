"""Clients that leave a stream, lose their connection, or need longer for a batch."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from tests.support.api import problem
from tests.support.consumer import owners
from tests.support.patience import until
from tests.support.subscriptions import events_url, subscribe_from_beginning


def leave(api, stream):
    return api.delete(f"/subscriptions/{stream.subscription['id']}/streams/{stream.id}")


def extend(api, stream):
    answer = api.post(f"/subscriptions/{stream.subscription['id']}/streams/{stream.id}/extend")
    assert answer.status_code == 200, answer.text
    return datetime.fromisoformat(answer.json()["commit_by"])


def test_a_client_that_leaves_gives_its_partitions_back_at_once(api, open_consumer):
    """A client leaves in the middle of a batch: its answer ends properly, the next stream gets the partition and the
    events at once, and later commits of the first stream are refused. (S324, S227, S206, S115)
    """
    subscription = subscribe_from_beginning(api, events=2)
    one = open_consumer(subscription)
    batch = one.batch()
    assert api.head(events_url(subscription)).status_code == 409
    answer = leave(api, one)
    assert (answer.status_code, answer.content) == (204, b"")
    with open_consumer(subscription) as two:
        assert two.status == 200
        assert two.batch()["events"] == batch["events"]
    assert one.debug_at_the_end() == []
    assert one.ended
    assert problem(one.commit(batch), 422) == f"Session with stream id {one.id} not found"


def test_other_streams_get_what_a_client_leaves(api, open_consumer):
    """When a client leaves, its commits stay, and its uncommitted events come to a stream that is already open. (S324,
    S235, S245)
    """
    subscription = subscribe_from_beginning(api, partitions=2, events=20)
    one = open_consumer(subscription, batch_limit=1, max_uncommitted_events=1, batch_flush_timeout=1)
    [done] = one.consumed(1)
    pending = one.batch()
    two = open_consumer(subscription, max_uncommitted_events=100, batch_flush_timeout=1)
    assert leave(api, one).status_code == 204
    until(lambda: set(owners(api, subscription).values()) == {two.id})
    got = [each["n"] for each in two.consumed(19)]
    assert sorted([*got, done["n"]]) == list(range(20))
    assert pending["events"][0]["n"] in got


def test_leaving_can_be_repeated(api, open_consumer):
    """Leaving succeeds for a stream that has ended, and for one that never existed. (S326)"""
    stream = open_consumer(subscribe_from_beginning(api))
    for _ in range(2):
        assert leave(api, stream).status_code == 204
    nothing = f"/subscriptions/{stream.subscription['id']}/streams/{uuid4()}"
    assert api.delete(nothing).status_code == 204
    assert problem(api.post(f"{nothing}/extend"), 404).startswith("Session with stream id ")


def test_a_lost_connection_releases_partitions_if_the_client_wants_it(api, open_consumer):
    """With `on_disconnect=release`, the commit timeout of a disconnected client does not delay others. (S329)"""
    subscription = subscribe_from_beginning(api, events=1)
    [name] = subscription["event_types"]
    for parameters in ({}, {"partitions": [(name, "0")]}):
        stream = open_consumer(subscription, on_disconnect="release", **parameters)
        batch = stream.batch()
        stream.close()
        until(lambda: api.head(events_url(subscription)).status_code == 200)
        # The log would mention an expired commit timeout.
        assert problem(stream.commit(batch), 422) == f"Session with stream id {stream.id} not found"


def test_a_stream_does_one_of_two_things_at_a_disconnect(api):
    """`on_disconnect` has two values; any other one is refused. (S329)"""
    answer = api.get(events_url(subscribe_from_beginning(api)), params={"on_disconnect": "forget"})
    assert problem(answer, 422) == "on_disconnect has to be one of: wait, release"


def test_a_client_that_needs_longer_gets_more_time(api, open_consumer):
    """An extension restarts the commit timeout, and the answer says when it ends. (S330)"""
    stream = open_consumer(subscribe_from_beginning(api, events=1), commit_timeout=50)
    batch = stream.batch()
    before = datetime.now(UTC)
    first = extend(api, stream)
    assert first >= before + timedelta(seconds=49.9)
    until(lambda: extend(api, stream) > first)
    assert stream.commit(batch).status_code == 204


def test_a_commit_that_comes_too_late_is_told_so(api, open_consumer):
    """A client whose commit timeout has passed is told so, with the time; so is one that asks for more time. (S333,
    S203)"""
    stream = open_consumer(subscribe_from_beginning(api, events=1), commit_timeout=1)
    before = datetime.now(UTC)
    batch = stream.batch()
    assert stream.debug_at_the_end() == ["Commit timeout reached"]
    refused = problem(stream.commit(batch), 422)
    expected = f"Session with stream id {stream.id} not found: its commit timeout of 1 seconds had passed at "
    assert refused.startswith(expected)
    assert before <= datetime.fromisoformat(refused.removeprefix(expected)) <= datetime.now(UTC)
    assert problem(api.post(f"/subscriptions/{stream.subscription['id']}/streams/{stream.id}/extend"), 404) == refused


def test_a_consumer_whose_batch_is_not_full_yet_is_not_stalled(api, open_consumer):
    """A partition is not stalled while an event waits longer than the commit timeout because its batch is not full.
    (S340)
    """
    subscription = subscribe_from_beginning(api, events=1)
    query = {"show_time_lag": True}
    with open_consumer(subscription, commit_timeout=1, batch_limit=2, batch_flush_timeout=3600):

        def find_partition():
            return api.get(f"/subscriptions/{subscription['id']}/stats", params=query).json()["items"][0]["partitions"][
                0
            ]

        until(lambda: find_partition()["consumer_lag_seconds"] >= 2)
        found = find_partition()
        assert found["stream_id"]
        assert "stalled" not in found


def test_a_consumer_that_fails_at_one_event_is_stalled(api, open_consumer):
    """Streams end without a commit at the same event, by the commit timeout or because their client leaves: the
    partition is stalled between them, too, until a commit. (S340)"""
    subscription = subscribe_from_beginning(api, events=2)

    def is_stalled():
        [found] = api.get(f"/subscriptions/{subscription['id']}/stats").json()["items"]
        return found["partitions"][0].get("stalled", False)

    with open_consumer(subscription, commit_timeout=1) as stream:
        stream.batch()
        assert stream.debug_at_the_end() == ["Commit timeout reached"]
    for _ in range(2):
        assert not is_stalled()
        with open_consumer(subscription) as stream:
            stream.batch()
            assert leave(api, stream).status_code == 204
            assert stream.debug_at_the_end() == []
    assert is_stalled()
    with open_consumer(subscription) as stream:
        assert stream.commit(stream.batch()).status_code == 204
        assert not is_stalled()
