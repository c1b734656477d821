"""The work that one batch may cause."""

import json
from contextlib import closing

import pytest
from msgspec.structs import replace

from nakadi.common.work import LongWorkQueue, client_never_gone
from nakadi.model.event_type import PartitionStrategy
from nakadi.model.outcomes import TryLater
from nakadi.publishing import batch as batches
from nakadi.publishing.batch import STEPS_WITHOUT_TURN, BatchLimits, BatchStatus, WorkBudget
from nakadi.publishing.validation import LONG_BODY_BYTES
from nakadi.schemas.values import StepsExhausted
from tests.support.builders import a_schema, an_event_type
from tests.support.publishing import a_business_type, metadata, statuses_and_steps, the_failure


class CountedTurns(LongWorkQueue):
    """A queue for long work that counts the turns taken, and records who has the current one."""

    def __init__(self):
        super().__init__()
        self.had = 0

    def wait_for_turn(self, gone):
        self.had += 1
        return super().wait_for_turn(gone)


class RefusingTurns(LongWorkQueue):
    """A queue for long work that never grants a turn."""

    def wait_for_turn(self, gone):  # noqa: ARG002  # as a real one takes it
        raise TryLater("Not now")


def a_budget(most=50_000_000, long_work=None, is_client_gone=client_never_gone):
    return closing(WorkBudget(most, long_work or CountedTurns(), is_client_gone))


def test_little_work_takes_no_turn():
    """The first steps of a batch, up to a limit, need no turn."""
    with a_budget(long_work=RefusingTurns()) as budget:
        budget.spend_steps(STEPS_WITHOUT_TURN)


def test_more_work_takes_one_turn_and_gives_it_back():
    """However often more steps are needed, only one turn is taken, and it ends with the block."""
    long_work = CountedTurns()
    with a_budget(long_work=long_work) as budget:
        for _ in range(20):
            budget.spend_steps(STEPS_WITHOUT_TURN)
    with long_work.wait_for_turn(client_never_gone):
        assert long_work.had == 2


def test_all_portions_together_are_the_most():
    """Portions of steps have the same size until larger ones are requested, and the last portion is the remainder."""
    with a_budget(most=6_000_000) as budget:
        portions = [budget.steps[0]]
        for larger in (False, False, True, False):
            budget.grant_more_steps(doubled=larger)
            portions.append(budget.steps[0])
        with pytest.raises(StepsExhausted):
            budget.grant_more_steps()
    assert portions == [200_000, 1_000_000, 1_000_000, 2_000_000, 1_800_000]


def test_spending_ends_where_the_steps_end():
    """The budget allows exactly its number of steps."""
    with a_budget(most=5_000_000) as budget:
        budget.spend_steps(5_000_000)
        with pytest.raises(StepsExhausted):
            budget.spend_steps(1)


def test_long_work_is_given_up_when_the_client_has_gone():
    """Long work ends when the client has gone, because nobody would read the answer, and other requests wait for the
    turn.
    """
    with a_budget(is_client_gone=lambda: True) as budget:
        budget.spend_steps(STEPS_WITHOUT_TURN)
        with pytest.raises(TryLater, match="given up"):
            budget.spend_steps(1)


# In the pipeline

SLOW = a_schema(json.dumps({"properties": {"a": {"items": {"allOf": [{"minimum": -each} for each in range(100)]}}}}))
EVENT = {"a": [1] * 1_000}  # some 100,000 steps


def limit_steps(house, most, long_work=None):
    limits = BatchLimits(max_steps=most)
    house.publisher = replace(house.publisher, limits=limits, long_work_queue=long_work or CountedTurns())
    return house


def test_the_work_of_a_batch_is_bounded_and_not_that_of_each_event(house):
    """A batch whose events together take too many steps is refused, and nothing is stored. (P13, P56)"""
    event_type = limit_steps(house, 1_000_000).add(an_event_type(schema=SLOW))
    outcome = house.publish(event_type, [EVENT] * 20)

    status, detail = the_failure(outcome)
    assert (outcome.status, status) == (BatchStatus.REJECTED, "validating")
    assert detail.startswith("Validating the events of this batch takes more than 1000000 steps")
    assert statuses_and_steps(outcome).count(("failed", "validating")) == 1
    assert house.stored(event_type) == []


def test_the_work_of_events_that_are_quickly_checked_is_bounded_together(house):
    """However few steps each of many events takes, and whichever check takes them, all events share the budget.
    (P56)"""
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/definitions/d{n - 1}"}] * 2} for n in range(1, 12)}
    schema = {"definitions": {"d0": {"type": "object"}, **twice}, "$ref": "#/definitions/d11"}
    event_type = limit_steps(house, 1_000_000).add(an_event_type(schema=a_schema(json.dumps(schema))))
    outcome = house.publish(event_type, [{}] * 1_300)

    assert outcome.status is BatchStatus.REJECTED
    assert the_failure(outcome)[1].startswith("Validating the events of this batch takes more than 1000000 steps")


def test_events_that_fit_are_stored(house):
    """With enough steps, a batch that would otherwise take too many is stored."""
    event_type = limit_steps(house, 50_000_000).add(an_event_type(schema=SLOW))
    assert house.publish(event_type, [EVENT] * 20).status is BatchStatus.STORED


def test_a_single_event_may_take_more_than_what_is_free(house):
    """An event that needs more than the initial steps is checked with more. (P56)"""
    long_work = CountedTurns()
    event_type = limit_steps(house, 50_000_000, long_work).add(an_event_type(schema=SLOW))
    large = {"a": [1] * 30_000}

    assert house.publish(event_type, [large]).status is BatchStatus.STORED
    assert long_work.had == 1


def test_long_work_waits_for_its_turn(house):
    """A batch that takes long is answered with 503 while no turn is available, and a batch that does not is stored."""
    event_type = limit_steps(house, 50_000_000, RefusingTurns()).add(an_event_type(schema=SLOW))
    with pytest.raises(TryLater, match="Not now"):
        house.publish(event_type, [EVENT] * 20)
    assert house.publish(event_type, [{"a": [1]}]).status is BatchStatus.STORED
    assert len(house.stored(event_type)) == 1


def test_long_bodies_wait_for_their_turn(house):
    """A body that takes long to parse is answered with 503 while no turn is available."""
    event_type = limit_steps(house, 50_000_000, RefusingTurns()).add(an_event_type())
    with pytest.raises(TryLater, match="Not now"):
        house.publish(event_type, [{"a": "x" * 1_000}] * (LONG_BODY_BYTES // 1_000))
    with pytest.raises(TryLater, match="Not now"):
        house.delete(event_type, [{"a": "x" * 1_000}] * (LONG_BODY_BYTES // 1_000))


def test_a_wrong_body_is_looked_through_in_its_turn(house):
    """Finding faults that only the strict parser finds takes long in a long body, so it waits for a turn."""
    event_type = limit_steps(house, 50_000_000, RefusingTurns()).add(an_event_type())
    body = json.dumps([{"a": "x" * 1_000}] * 300)
    with pytest.raises(TryLater, match="Not now"):
        house.publish(event_type, body[:-2].encode())


def test_a_long_explanation_takes_a_turn(house):
    """Explaining a fault takes a turn if there is much to search. (P71)"""
    schema = {"properties": {"a": {"items": {"anyOf": [{"enum": [1]}, {"enum": [2]}]}}}}
    event_type = house.add(an_event_type(schema=a_schema(json.dumps(schema))))
    long_work = CountedTurns()
    limit_steps(house, 50_000_000, long_work)

    the_failure(house.publish(event_type, [{"a": [3]}]))
    assert long_work.had == 0
    the_failure(house.publish(event_type, [{"a": [1] * 3_000 + [3]}]))
    assert long_work.had == 1


def test_keys_are_part_of_the_work(house, monkeypatch):
    """The characters of keys that are hashed count as steps, and too many of them are refused. (P84)"""
    monkeypatch.setattr(batches, "STEPS_WITHOUT_TURN", 1_000)
    fields = {"partition_strategy": PartitionStrategy.HASH, "partition_key_fields": ("k",) * 10, "partitions": 2}
    event_type = limit_steps(house, 5_000).add(a_business_type(**fields))
    event = {"metadata": metadata(), "k": "x" * 100}

    assert house.publish(event_type, [event] * 2).status is BatchStatus.STORED
    status, detail = the_failure(house.publish(event_type, [event] * 20))
    assert status == "partitioning"
    assert detail.startswith("The keys of this batch are too long")


def test_work_is_given_up_for_a_client_that_has_gone(house):
    """If a client closes its connection during the work on its batch, the batch is not stored."""
    event_type = limit_steps(house, 50_000_000).add(an_event_type(schema=SLOW))
    with pytest.raises(TryLater, match="given up"):
        house.publish(event_type, [EVENT] * 20, is_client_gone=lambda: True)
    assert house.stored(event_type) == []
