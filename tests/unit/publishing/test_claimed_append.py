"""Appends with claims, at moments that random simulations rarely reach."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.eid_claims import MemoryEidClaims
from nakadi.engines.memory.event_log import MemoryLog
from nakadi.model.events import AppendRefused, AppendStored, AppendStoredExcept, DuplicateEvent, EventPlace, Record
from nakadi.model.outcomes import Unavailable
from nakadi.ports.deduplication import EventIds
from nakadi.publishing.claimed_append import (
    APPEND_SETTLES_AFTER,
    CLAIMS_HOLD_FOR,
    TOO_LATE_MESSAGE,
    UNDER_WAY_MESSAGE,
    ClaimedAppend,
    KnownPositions,
    LogDeduplication,
    run_steps,
)
from tests.support.clock import HandMovedClock

EID = uuid.UUID("105a76d8-db49-4144-ace7-e683e8f4ba46")
RECORD = Record(b'{"metadata":{"eid":"%s"}}' % str(EID).encode())


class LogWithClaim:
    """A log and its claims, where a process has claimed an event."""

    def __init__(self) -> None:
        self.clock = HandMovedClock()
        self.log = MemoryLog(self.clock)
        self.log.create_topic("t", 1)
        self.claims = MemoryEidClaims()

    def for_storage(self, _storage_id: str) -> MemoryLog:
        return self.log

    def attempt(self) -> ClaimedAppend:
        ids = EventIds(scope="s", timeline=1, window=timedelta(hours=1), packed_eids=EID.bytes, partitions=[0])
        return ClaimedAppend(
            logs=self,
            claims=self.claims,
            positions=KnownPositions(self.clock),
            clock=self.clock,
            storage_id="default",
            topic="t",
            batches={0: [RECORD]},
            ids=ids,
        )

    def attempt_until(self, name: str) -> tuple[Any, Any]:
        """An attempt that has reached this step, together with the step."""
        steps = self.attempt().steps()
        step = next(steps)
        while step.func.__name__ != name:
            step = steps.send(step())
        return steps, step

    def stored(self) -> int:
        return self.log.bounds("t", [0])[0].next_offset


@pytest.fixture
def log_with_claim():
    return LogWithClaim()


def send_last(steps: Any, result: Any) -> Any:
    with pytest.raises(StopIteration) as ended:
        steps.send(result)
    return ended.value.value


def test_what_settles_while_the_log_is_read_is_not_taken_over(log_with_claim):
    """A claim that settles while the log is read is not taken over, because its attempt may have stored its event
    after that read. (P158)
    """
    log_with_claim.attempt_until("_append_to")
    log_with_claim.clock.move(APPEND_SETTLES_AFTER.total_seconds() - 1)
    steps, read = log_with_claim.attempt_until("_read_events")
    found = read()
    run_blocking(log_with_claim.log.append("t", {0: [RECORD]}))
    log_with_claim.clock.move(2)
    assert send_last(steps, found) == {0: AppendStoredExcept({0: AppendRefused(UNDER_WAY_MESSAGE)})}
    assert run_steps(log_with_claim.attempt().steps()) == {
        0: AppendStoredExcept({0: DuplicateEvent(EventPlace(1, 0, 0))})
    }
    assert log_with_claim.stored() == 1


def test_a_dead_attempt_is_taken_over_when_it_is_over(log_with_claim):
    """Until a dead attempt is certainly over, no publisher is told that the event is stored; then the next attempt
    stores it. (P158)
    """
    log_with_claim.attempt_until("_append_to")
    assert run_steps(log_with_claim.attempt().steps()) == {0: AppendStoredExcept({0: AppendRefused(UNDER_WAY_MESSAGE)})}
    log_with_claim.clock.move(APPEND_SETTLES_AFTER.total_seconds())
    assert run_steps(log_with_claim.attempt().steps()) == {0: AppendStored()}
    assert log_with_claim.stored() == 1


def test_an_attempt_that_died_behind_its_append_has_stored_its_event(log_with_claim):
    """If an attempt died after its append, the next one finds the event, because it reads the log whatever the state
    of the claim. (P158)
    """
    _, append = log_with_claim.attempt_until("_append_to")
    append()
    assert run_steps(log_with_claim.attempt().steps()) == {
        0: AppendStoredExcept({0: DuplicateEvent(EventPlace(1, 0, 0))})
    }
    assert log_with_claim.stored() == 1


def test_an_append_is_not_begun_late(log_with_claim):
    """If claiming took too long, the append does not begin, and its claims are released, so the next attempt need
    not wait for them.
    """
    steps, claim = log_with_claim.attempt_until("claim")
    found = claim()
    log_with_claim.clock.move(CLAIMS_HOLD_FOR.total_seconds() + 1)
    steps.send(found)()
    assert send_last(steps, None) == {0: AppendStoredExcept({0: AppendRefused(TOO_LATE_MESSAGE)})}
    assert run_steps(log_with_claim.attempt().steps()) == {0: AppendStored()}


def test_a_confirmation_that_fails_does_no_harm(log_with_claim):
    """If a confirmation fails, the event is stored, its publisher is told so, and the next attempt finds the event
    in the log.
    """
    steps, append = log_with_claim.attempt_until("_append_to")
    steps.send(append())
    with pytest.raises(StopIteration) as ended:
        steps.throw(Unavailable("no answer"))
    assert ended.value.value == {0: AppendStored()}
    assert run_steps(log_with_claim.attempt().steps()) == {
        0: AppendStoredExcept({0: DuplicateEvent(EventPlace(1, 0, 0))})
    }


def test_a_claim_that_was_confirmed_meanwhile_is_not_taken_over(log_with_claim):
    """If two attempts take over a dead one, the second does not undo what the first has confirmed. (P158)"""
    log_with_claim.attempt_until("_append_to")
    log_with_claim.clock.move(APPEND_SETTLES_AFTER.total_seconds())
    slow, take_over = log_with_claim.attempt_until("replace")
    run_blocking(log_with_claim.log.append("t", {0: [RECORD]}))
    assert run_steps(log_with_claim.attempt().steps()) == {
        0: AppendStoredExcept({0: DuplicateEvent(EventPlace(1, 0, 0))})
    }
    assert send_last(slow, take_over()) == {0: AppendStoredExcept({0: AppendRefused(UNDER_WAY_MESSAGE)})}
    assert log_with_claim.stored() == 1


def test_a_log_that_was_opened_again_takes_the_place_of_the_one_before(log_with_claim):
    """If a storage's log is opened again, the cached properties of the earlier log no longer apply."""
    deduplication = LogDeduplication(log_with_claim, lambda: None, log_with_claim.clock)
    first = log_with_claim.log
    assert deduplication.find("default") is deduplication.find("default") is first
    log_with_claim.log = MemoryLog(log_with_claim.clock)
    assert deduplication.find("default") is log_with_claim.log
