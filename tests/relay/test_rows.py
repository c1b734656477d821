"""Turns rows into events."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

from nakadi_relay.rows import Row, event_text

EID, MOMENT = UUID(int=7), datetime(2026, 11, 21, 12, tzinfo=UTC)


def text(event: str, *, has_metadata: bool = True) -> bytes:
    return event_text(Row(1, "order.placed", "A", event, EID, MOMENT), has_metadata=has_metadata)


def test_an_event_without_metadata_goes_as_it_is():
    """If the event type has no metadata, the relay publishes the application's text unchanged."""
    assert text('{"price": 1.10, "n": 12345678901234567890}', has_metadata=False) == (
        b'{"price": 1.10, "n": 12345678901234567890}'
    )


def test_missing_metadata_come_from_the_row():
    """`eid` and `occurred_at` come from the row, so each attempt has the same ones; numbers keep their spelling."""
    published = text('{"price": 1.10}')
    assert json.loads(published)["metadata"] == {"eid": str(EID), "occurred_at": "2026-11-21T12:00:00+00:00"}
    assert b"1.10" in published


@pytest.mark.parametrize(
    "event",
    [
        "{}",
        '{"n": {"metadata": 1}}',
        '{"n": "\\"metadata\\""}',
        '{"Metadata": 1}',
        '{"n": "Zoë}"}',
        '{"a": [], "b": 1}',
    ],
)
def test_every_event_keeps_its_members(event):
    """The relay adds the row's metadata to an event's own `metadata`, and leaves everything else unchanged."""
    published = json.loads(text(event))
    assert published.pop("metadata") == {"eid": str(EID), "occurred_at": "2026-11-21T12:00:00+00:00"}
    assert published == json.loads(event)


def test_the_application_goes_first():
    """Metadata from the application take precedence over the row's, except for nulls."""
    event = '{"n": 1, "metadata": {"eid": "mine", "occurred_at": null, "flow_id": "f"}}'
    assert json.loads(text(event))["metadata"] == {
        "eid": "mine",
        "occurred_at": "2026-11-21T12:00:00+00:00",
        "flow_id": "f",
    }


@pytest.mark.parametrize("metadata", ["1", '"x"', "[]", "null"])
def test_metadata_that_are_none_are_the_brokers_to_refuse(metadata):
    """The relay publishes malformed metadata unchanged, and the broker reports the fault."""
    event = f'{{"metadata": {metadata}}}'
    assert text(event) == event.encode()


def test_rows_without_a_key_have_no_order():
    """Each row without a key gets a separate key."""
    first, second = (Row(number, "t", None, "{}", EID, MOMENT) for number in (1, 2))
    assert first.order_key != second.order_key
    # A key that looks like a row's id is a different key.
    assert Row(3, "t", "1", "{}", EID, MOMENT).order_key != first.order_key
