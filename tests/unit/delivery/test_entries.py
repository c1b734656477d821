"""Which entries go into one request, and what the answers mean for a batch."""

from hypothesis import given
from hypothesis import strategies as st

from nakadi.delivery.answers import Answer, Verdict
from nakadi.delivery.entries import Entry, EntryFailure, RequestLimits, answer_of_entries, plan_requests

BUSY, REFUSED = EntryFailure("busy", is_blamed=False), EntryFailure("too long", is_blamed=True)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["a", "b", "c", None])), max_size=60),
    st.builds(RequestLimits, st.integers(1, 10), st.integers(1, 100)),
)
def test_requests_have_everything_once_within_the_limits_and_in_order(drawn, limits):
    """Every entry is in one request. A request has no two entries of one group, and the requests keep each group's
    order. (X43)
    """
    entries = [Entry(index, {}, size, group) for index, (size, group) in enumerate(drawn)]
    requests = list(plan_requests(entries, limits))
    assert sorted(each.index for request in requests for each in request) == list(range(len(entries)))
    for request in requests:
        assert 0 < len(request) <= limits.entries
        assert len(request) == 1 or sum(each.size for each in request) <= limits.bytes
        groups = [each.group for each in request if each.group is not None]
        assert len(groups) == len(set(groups))
    for group in "abc":
        sent = [each.index for request in requests for each in request if each.group == group]
        assert sent == sorted(sent)


def test_entries_without_an_order_fill_requests():
    """(X43)"""
    entries = [Entry(index, {}, 1) for index in range(25)]
    assert [len(each) for each in plan_requests(entries, RequestLimits(10, 100))] == [10, 10, 5]


def test_a_batch_is_delivered_when_all_of_it_is_taken_in():
    assert answer_of_entries(3, {0, 1, 2}, {}) == Answer(200, verdict=Verdict.DELIVERED)
    assert answer_of_entries(0, set(), {}).verdict is Verdict.DELIVERED


def test_the_event_that_is_refused_is_to_blame():
    """The refused event is to blame, and the events before it count as delivered, even if there are none. (X35, X44)"""
    assert answer_of_entries(3, {0, 2}, {1: REFUSED}) == Answer(None, "too long", verdict=Verdict.FAILED, delivered=1)
    assert answer_of_entries(2, {1}, {0: REFUSED}) == Answer(None, "too long", verdict=Verdict.FAILED, delivered=0)


def test_no_event_is_to_blame_for_a_service_that_is_busy():
    """(X15, X44)"""
    assert answer_of_entries(3, {0}, {1: BUSY, 2: REFUSED}) == Answer(None, "busy", verdict=Verdict.LATER, delivered=1)


def test_events_that_were_not_sent_go_first():
    """If the third event is refused, and the second was not sent, the batch is sent again from the second event, and
    the third is not to blame yet. (X44)
    """
    assert answer_of_entries(3, {0}, {2: REFUSED}) == Answer(None, "too long", verdict=Verdict.LATER, delivered=1)
