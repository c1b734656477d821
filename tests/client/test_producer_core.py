"""The decisions of a producer: in every order of answers and faults, no event is lost or overtaken."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi_client.answers import Answer
from nakadi_client.deliveries import Delivered, Delivery, Lane
from nakadi_client.errors import EventRefused, NoAnswer, NotDelivered, Refused
from nakadi_client.producer_core import Batch, Limits, ProducerCore, Wait

PARTITIONS = 3


class SimulatedBroker:
    """A broker that follows the contract: a partition fails as a whole, and a batch is refused as a whole."""

    def __init__(self, draw) -> None:
        self._draw = draw
        self.stored = []
        # Copies that are permitted, because the broker gave no clear answer.
        self.excused = Counter()

    def answer_batch(self, deliveries):
        """Answer a batch in a random way."""
        events = [(each.key, each.eid) for each in deliveries]
        fault = self._draw()
        if fault == "lost request":
            return NoAnswer("lost", sent=self._draw() == "sent")
        if fault in (503, 429):
            return Answer(fault, retry_after=2.0 if self._draw() == "good" else None)
        return self._refusal(events) or self._write(events, fault)

    def _refusal(self, events):
        if any(eid.startswith("unreadable") for _, eid in events):
            return Answer(400, b'{"detail":"unreadable"}')
        bad = next((place for place, (_, eid) in enumerate(events) if eid.startswith("bad")), None)
        return None if bad is None else Answer(422, self._items(len(events), bad))

    def _write(self, events, fault):
        if fault == "lost answer":
            self._store(events, range(PARTITIONS), excused=True)
            return NoAnswer("lost")
        if fault == 500:
            self._store(events, range(PARTITIONS) if self._draw() == "stored" else (), excused=True)
            return Answer(500)
        good = [partition for partition in range(PARTITIONS) if fault != "partial" or self._draw() == "good"]
        silent = {partition for partition in range(PARTITIONS) if fault == "partial" and self._draw() == "stored"}
        self._store(events, good, excused=False)
        self._store(events, silent - set(good), excused=True)
        statuses = ["submitted" if partition_of(key) in good else "failed" for key, _ in events]
        items = [{"publishing_status": status, "step": "publishing", "detail": "?"} for status in statuses]
        return Answer(207, msgspec.json.encode(items)) if "failed" in statuses else Answer(200)

    def _store(self, events, partitions, *, excused) -> None:
        kept = [event for event in events if partition_of(event[0]) in partitions]
        self.stored += kept
        if excused:
            self.excused.update(kept)

    def _items(self, count, bad):
        return msgspec.json.encode(
            [
                {"publishing_status": "failed" if place == bad else "aborted", "step": "validating", "detail": "bad"}
                for place in range(count)
            ]
        )


def partition_of(key):
    return key % PARTITIONS


FAULTS = ["lost request", 503, 429, "lost answer", 500, "partial", "partial", *["none"] * 6]
WORDS = ["sent", "stored", "good", "no", "no"]


@given(seed=st.integers(0, 2**32), in_flight=st.integers(1, 4), keys=st.integers(1, 6), quiet=st.booleans())
def test_no_order_of_answers_loses_or_overtakes_an_event(seed, in_flight, keys, quiet):
    """Whatever a broker answers, in any order, acknowledged events are stored in the order of their keys, and twice
    only if an answer left it open.
    """
    rng = random.Random(seed)
    broker = SimulatedBroker(lambda: "none" if quiet else rng.choice(FAULTS + WORDS))
    limits = Limits(batch_events=7, batch_bytes=200, linger=0.5, in_flight=in_flight, delivery_timeout=1e9)
    core = ProducerCore(limits, rng.random)
    sent, on_their_way, settled = [], [], []
    now = 100.0
    for _ in range(20_000):
        if len(sent) < 60 and rng.random() < 0.5:
            number = len(sent)
            kind = rng.choices(["good", "bad", "unreadable"], [20, 1, 1])[0]
            delivery = Delivery(b'{"n":%d}' % number, eid=f"{kind}-{number:03d}", key=rng.randrange(keys))
            sent.append(delivery)
            core.add(delivery, now)
        step = core.step(now)
        if isinstance(step, Batch):
            assert in_flight > len(on_their_way)
            of_these = {each.key for each in step.deliveries}
            assert not any(each.key in of_these for batch, _ in on_their_way for each in batch.deliveries)
            # The broker treats the batch now, but the answer arrives at a random later moment.
            on_their_way.append((step, broker.answer_batch(step.deliveries)))
        elif on_their_way and rng.random() < 0.5:
            batch, answer = on_their_way.pop(rng.randrange(len(on_their_way)))
            settled += core.settle(batch, answer, now)
        else:
            # Time passes in small steps, or to the moment for which the core waits, but not to the delivery timeout.
            now = step.until if step.until is not None and now < step.until < now + 100 else now + 0.1
        if len(settled) == 60:
            break
    assert sorted(each.eid for each in settled) == sorted(each.eid for each in sent)
    assert len(sent) == 60
    check_outcomes(broker, sent)
    check_order(broker)
    assert core.kept_events == core.kept_bytes == 0


def check_outcomes(broker, sent):
    stored = Counter(broker.stored)
    for each in sent:
        copies = stored[each.key, each.eid]
        if each.eid.startswith("good"):
            assert isinstance(each.outcome, Delivered)
            assert copies >= 1
            assert copies <= 1 + broker.excused[each.key, each.eid]
            assert copies == 1 or each.outcome.maybe_doubled
        else:
            assert isinstance(each.outcome, (EventRefused, Refused))
            assert copies == 0


def check_order(broker):
    """Check that the first copies of each key's events are in the order in which the application sent them."""
    first = defaultdict(list)
    for key, eid in broker.stored:
        if eid not in first[key]:
            first[key].append(eid)
    for eids in first.values():
        assert eids == sorted(eids)


@given(seed=st.integers(0, 2**32))
def test_a_producer_that_stops_lets_nothing_pass_what_failed(seed):
    """With `stops`, exactly the first of the sent events are stored, and every event has an outcome."""
    rng = random.Random(seed)
    broker = SimulatedBroker(lambda: rng.choice(FAULTS + WORDS))
    limits = Limits(batch_events=7, linger=0.5, attempts=3, delivery_timeout=1e9)
    core = ProducerCore(limits, rng.random, stops=True)
    sent, settled, now = [], [], 100.0
    while (len(sent) < 40 and not core.is_stopped) or core.kept_events:
        if len(sent) < 40 and not core.is_stopped and rng.random() < 0.7:
            kind = rng.choices(["good", "bad", "unreadable"], [40, 1, 1])[0]
            sent.append(Delivery(b'{"n":%d}' % len(sent), eid=f"{kind}-{len(sent):03d}", key=1))
            core.add(sent[-1], now)
        step = core.step(now)
        if isinstance(step, Batch):
            settled += core.settle(step, broker.answer_batch(step.deliveries), now)
        else:
            now = step.until if step.until is not None and now < step.until < now + 100 else now + 0.1
    assert {each.eid for each in settled} == {each.eid for each in sent}
    delivered = [isinstance(each.outcome, Delivered) for each in sent]
    assert delivered == sorted(delivered, reverse=True)
    assert core.is_stopped is not all(delivered)


def core_with(count, *, stops=False, **limits):
    core = ProducerCore(Limits(**limits), lambda: 0.0, stops=stops)
    deliveries = [Delivery(b'{"n":%d}' % n, eid=str(n)) for n in range(count)]
    for each in deliveries:
        core.add(each, 0.0)
    return core, deliveries


def test_a_batch_waits_for_its_linger_or_its_size():
    """A small batch waits for the linger time; a full one is sent at once."""
    core, _ = core_with(3, batch_events=5, linger=1.0)
    assert core.step(0.5) == Wait(1.0)
    batch = core.step(1.0)
    assert isinstance(batch, Batch)
    assert batch.body == b'[{"n":0},{"n":1},{"n":2}]'

    core, _ = core_with(5, batch_events=5, linger=1.0)
    assert isinstance(core.step(0.0), Batch)
    core, _ = core_with(5, batch_bytes=20, linger=1.0)
    assert isinstance(batch := core.step(0.0), Batch)
    assert len(batch.deliveries) == 2


def test_a_flush_waits_for_no_linger_and_for_nothing_later():
    """A flush ends when all events that were added before it are settled."""
    core, _ = core_with(1, linger=1_000.0)
    flushed = core.flush()
    core.add(Delivery(b"{}", key="later"), 0.0)
    batch = core.step(0.0)
    assert not core.is_flushed(flushed)
    core.settle(batch, Answer(200), 0.0)
    assert core.is_flushed(flushed)


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (Answer(503, retry_after=7.0), 7.0),
        (Answer(429, retry_after=3.0), 3.0),
        (Answer(503), 0.05),
        (NoAnswer(""), 0.05),
    ],
)
def test_a_busy_broker_is_left_alone_for_as_long_as_it_asks(answer, pause):
    """After 429 and 503, the producer sends nothing until the time in `Retry-After` or, without it, a short pause is
    over.
    """
    core, _ = core_with(3)
    assert core.settle(core.step(1.0), answer, 1.0) == []
    assert core.step(1.0) == Wait(1.0 + pause)
    assert isinstance(core.step(1.0 + pause), Batch)


def test_an_event_is_given_up_after_its_attempts():
    """The producer gives up an event after a number of failed attempts; halving a batch is not one. The outcome has the
    result of the last attempt.
    """
    core, deliveries = core_with(2, attempts=2)
    assert core.settle(core.step(1.0), Answer(413), 1.0) == []
    assert core.settle(core.step(1.0), NoAnswer("gone"), 1.0) == []
    [given_up] = core.settle(core.step(2.0), Answer(503, b'{"detail":"no room"}'), 2.0)

    assert given_up is deliveries[0]
    assert isinstance(given_up.outcome, NotDelivered)
    assert given_up.outcome.maybe_stored
    assert str(given_up.outcome) == "The event was not stored in 2 attempts. no room (503)"
    assert isinstance(given_up.outcome.reason, Refused)
    assert given_up.outcome.reason.status == 503
    # The other event waits for its own first attempt.
    assert core.kept_events == 1


def test_a_producer_that_stops_at_a_refused_event_resends_nothing_of_its_batch():
    """The report of the refused event has the reason; the producer gives up the rest of its batch and all waiting
    events.
    """
    core, (first, refused, waiting) = core_with(3, stops=True, batch_events=2)
    items = [{"publishing_status": status, "step": "validating"} for status in ("aborted", "failed")]
    core.settle(core.step(1.0), Answer(422, msgspec.json.encode(items)), 1.0)

    assert core.is_stopped
    assert core.kept_events == 0
    assert isinstance(refused.outcome, EventRefused)
    assert {str(each.outcome) for each in (first, waiting)} == {"An earlier event was not delivered."}


def test_a_batch_that_is_too_large_is_halved_and_stays_smaller():
    """After 413 the next batches have at most half of its bytes."""
    core, _ = core_with(8, batch_events=8)
    core.settle(core.step(1.0), Answer(413), 1.0)
    sizes = []
    while isinstance(batch := core.step(1.0), Batch):
        sizes.append(len(batch.deliveries))
        core.settle(batch, Answer(200), 1.0)
    assert sizes == [4, 4]


def test_bad_events_in_a_row_cost_a_request_each():
    """If a batch has several bad events, the producer does not resend the good ones for each bad one."""
    core, deliveries = core_with(100, batch_events=100)
    requests = events = 0
    while isinstance(batch := core.step(1.0), Batch):
        requests += 1
        events += len(batch.deliveries)
        failed = [{"publishing_status": "failed", "step": "validating", "detail": "no"}]
        rest = [{"publishing_status": "aborted", "step": "none", "detail": ""}] * (len(batch.deliveries) - 1)
        core.settle(batch, Answer(422, msgspec.json.encode(failed + rest)), 1.0)
    assert all(isinstance(each.outcome, EventRefused) for each in deliveries)
    assert requests == 100
    assert events < 300


def test_a_resting_key_holds_up_no_other():
    """While a key waits for its next attempt, new events with other keys are sent."""
    core = ProducerCore(Limits(linger=0, batch_events=10), lambda: 0.0)
    core.add(Delivery(b"{}", eid="a1", key="a"), 0.0)
    failed = msgspec.json.encode([{"publishing_status": "failed", "step": "publishing", "detail": "no"}])
    core.settle(core.step(0.0), Answer(207, failed), 0.0)
    for eid in ("a2", "b1"):
        core.add(Delivery(b"{}", eid=eid, key=eid[0]), 0.0)
    assert [each.eid for each in core.step(0.0).deliveries] == ["b1"]


def test_a_new_event_wakes_a_sender_that_waits_for_a_resting_key():
    """A sender that sleeps until a key has rested is woken for an event that can go earlier."""
    core = ProducerCore(Limits(linger=0.01), lambda: 0.0)
    core.add(Delivery(b"{}", key="a"), 0.0)
    failed = msgspec.json.encode([{"publishing_status": "failed", "step": "publishing", "detail": "no"}])
    core.settle(core.step(0.1), Answer(207, failed), 0.1)
    assert isinstance(core.step(0.1), Wait)
    assert core.add(Delivery(b"{}", key="b"), 0.1)
    assert isinstance(core.step(0.1), Wait)
    assert not core.add(Delivery(b"{}", key="b"), 0.1)


def test_unordered_events_wait_for_nobody():
    """Without an order, the producer uses all the requests in flight that it may have."""
    core = ProducerCore(Limits(batch_events=1, in_flight=2), lambda: 0.0)
    for _ in range(3):
        core.add(Delivery(b"{}", key=Lane.NONE), 0.0)
    assert isinstance(core.step(0.0), Batch)
    assert isinstance(core.step(0.0), Batch)
    assert core.step(0.0) == Wait()


def test_unordered_events_that_failed_are_not_sent_again_at_once():
    """After a failure of a partition, the producer pauses, even without an order."""
    core = ProducerCore(Limits(batch_events=1), lambda: 0.0)
    core.add(Delivery(b"{}", key=Lane.NONE), 0.0)
    failed = msgspec.json.encode([{"publishing_status": "failed", "step": "publishing", "detail": "no"}])
    core.settle(core.step(0.0), Answer(207, failed), 0.0)
    assert isinstance(core.step(0.0), Wait)


def test_old_events_are_given_up():
    """An event that is not acknowledged in time is reported; the report says whether it may be stored."""
    core, [delivery] = core_with(1, delivery_timeout=10.0)
    core.settle(core.step(1.0), NoAnswer("lost"), 1.0)
    assert core.expire(10.0) == [delivery]
    assert isinstance(delivery.outcome, NotDelivered)
    assert delivery.outcome.maybe_stored
    assert core.step(11.0) == Wait()


def test_a_batch_that_comes_back_after_the_end_is_given_up():
    """Once a producer has given up waiting events, it also gives up a batch whose answer comes later."""
    core, [first, second] = core_with(2, batch_events=1)
    batch = core.step(1.0)
    assert core.give_up("The producer was closed.") == [second]
    assert core.settle(batch, NoAnswer("lost"), 1.0) == [first]
    assert [(type(each.outcome), each.outcome.maybe_stored) for each in (first, second)] == [
        (NotDelivered, True),
        (NotDelivered, False),
    ]
    assert core.kept_events == 0


def test_the_buffer_has_two_limits():
    """The buffer limits events and bytes; an event that is larger than the buffer passes when the buffer is empty."""
    core, _ = core_with(2, buffer_events=3, buffer_bytes=20)
    assert core.has_room_for(1)
    assert not core.has_room_for(10)
    core, _ = core_with(3, buffer_events=3)
    assert not core.has_room_for(1)
    core, _ = core_with(0, buffer_bytes=20)
    assert core.has_room_for(1_000)


def test_an_impossible_limit_is_refused():
    """Limits with which a producer could never send are refused."""
    for bad in ({"batch_events": 0}, {"in_flight": 0}, {"linger": -1}, {"buffer_events": 0}):
        with pytest.raises(ValueError, match="must be"):
            Limits(**bad)


def test_a_whole_refusal_is_told_to_each_event():
    """403 and 404 are the outcome of every event in the batch, and the producer does not retry."""
    core, deliveries = core_with(2)
    settled = core.settle(core.step(1.0), Answer(403, b'{"detail":"Access denied"}', flow_id="f"), 1.0)
    assert settled == deliveries
    assert all("Access denied (403, flow id f)" in str(each.outcome) for each in deliveries)
