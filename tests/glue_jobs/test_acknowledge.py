"""Misfits and gaps in tables cause warnings until an operator acknowledges them; they are always counted."""

import pytest

from nakadi.event_types.table_states import TABLE_STATES_KIND, TableState, table_state_body, table_state_from_body
from nakadi.model.outcomes import Unavailable
from nakadi.ports.registry import PutDocument
from nakadi_jobs import acknowledge, table_states
from nakadi_jobs.__main__ import main
from tests.support.builders import A_MOMENT
from tests.support.jobs import order


def state_of(data, event_type):
    document = data.registry.get(TABLE_STATES_KIND, event_type.id)
    return table_state_from_body(document.body)


def printed_warnings(ran):
    return [line.strip() for line in ran.told.splitlines() if line.startswith("  Warning")]


@pytest.mark.long
def test_what_is_known_is_not_warned_of_again(jobs, data):
    """Each run warns about misfits and gaps, even if it has nothing else to do. After an acknowledgement, no run does
    until there are more. The counts stay.
    """
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1), b"{broken"])
    damaged = data.archive_events(orders, [order(2), order(3), order(4)])
    data.path(damaged).unlink()

    assert jobs.compact().code == 3
    told = printed_warnings(jobs.compact())
    assert len(told) == 2
    assert "order.placed: 3 events are missing" in told[0]
    assert "order.placed: 1 events of earlier runs do not fit the columns" in told[1]

    places = ["--data", str(data.folder)]
    assert main(["acknowledge", *places, "--event-types", "order.placed"]) == 0
    silent = jobs.compact()
    assert (silent.code, printed_warnings(silent)) == (0, [])
    assert "3 events are missing" in silent.told
    state = state_of(data, orders)
    assert (state.misfit_count, state.unreadable_count, state.acknowledged_misfits, state.acknowledged_unreadable) == (
        1,
        3,
        1,
        3,
    )

    data.archive_events(orders, [b"{broken too"])
    assert "1 events do not fit the columns" in printed_warnings(jobs.compact())[0]
    assert "1 events of earlier runs do not fit" in printed_warnings(jobs.compact())[0]
    state = state_of(data, orders)
    assert (state.misfit_count, state.unreadable_count, state.acknowledged_misfits, state.acknowledged_unreadable) == (
        2,
        3,
        1,
        3,
    )


def a_state(**changes):
    counts = {"row_count": 9, "misfit_count": 2, "unreadable_count": 5} | changes
    return TableState(table_name="order_placed", next_offsets={}, updated_at=A_MOMENT, **counts)


def test_an_acknowledgement_is_for_all_event_types_or_for_some(data, capsys):
    """An acknowledgement covers the current misfits and gaps; a table without any is not mentioned."""
    named = [data.event_type(name) for name in ("order.placed", "order.paid", "order.sent", "order.lost")]
    for each, state in zip(
        named, (a_state(), a_state(misfit_count=1), a_state(misfit_count=0, unreadable_count=0)), strict=False
    ):
        data.registry.write(PutDocument(TABLE_STATES_KIND, each.id, table_state_body(state)))
    places = ["--data", str(data.folder)]

    assert acknowledge.main([*places, "--event-types", "order.placed"]) == 0
    assert capsys.readouterr().err == "order.placed: 2 misfits and 5 missing events are known\n"
    assert [state_of(data, each).acknowledged_misfits for each in named[:3]] == [2, 0, 0]
    assert acknowledge.main(places) == 0
    assert "order.paid: 1 misfits and 5 missing events are known\n" in capsys.readouterr().err
    assert [state_of(data, each).acknowledged_misfits for each in named[:3]] == [2, 1, 0]
    assert data.registry.get(TABLE_STATES_KIND, named[3].id) is None


@pytest.mark.parametrize("wrong", [["--event-types", "unknown"], ["--data", "/nowhere"]])
def test_what_cannot_be_acknowledged(data, capsys, wrong):
    """An unknown name and a missing folder are refused."""
    data.event_type("order.placed")
    assert acknowledge.main(["--data", str(data.folder), *wrong]) == 1
    assert "acknowledge: cannot be done." in capsys.readouterr().err


def test_a_job_that_writes_at_the_same_time_loses_no_acknowledgement(data):
    """If a job writes a document between the command's read and its write, the command reads it again."""
    orders = data.event_type("order.placed")
    data.registry.write(PutDocument(TABLE_STATES_KIND, orders.id, table_state_body(a_state())))

    class RegistryWithRace:
        """A registry in which a job once writes first."""

        def __init__(self):
            self.writes = 0

        def get(self, *key):
            return data.registry.get(*key)

        def write(self, change):
            self.writes += 1
            if self.writes == 1:
                data.registry.write(
                    PutDocument(TABLE_STATES_KIND, orders.id, table_state_body(a_state(misfit_count=3)))
                )
            if self.writes > 2:
                raise Unavailable("it goes on forever")
            data.registry.write(change)

    racing = RegistryWithRace()
    found = table_states.acknowledge(racing, orders)
    assert (found.acknowledged_misfits, racing.writes) == (3, 2)
    assert state_of(data, orders) == found
