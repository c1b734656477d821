"""Lines become typed events; events that do not fit are set aside, and do not delay others."""

import msgspec
import pydantic
import pytest

from nakadi_client.decoding import LineDecoder

CURSOR = b'{"event_type":"t","partition":"0","offset":"001-0001-000000000000000001","cursor_token":"x"}'


class Order(msgspec.Struct):
    n: int


class PydanticOrder(pydantic.BaseModel):
    n: int


@pytest.mark.parametrize("model", [None, Order, PydanticOrder, dict[str, int]])
def test_events_are_of_the_model(model):
    decoded = LineDecoder(model).decode(b'{"cursor":%s,"events":[{"n":1},{"n":2}]}' % CURSOR)
    events = [event["n"] if isinstance(event, dict) else event.n for event in decoded.line.events]
    assert events == [1, 2]
    assert decoded.line.cursor.place == ("t", "0")


@pytest.mark.parametrize("model", [Order, PydanticOrder])
def test_what_does_not_fit_is_set_apart_as_it_was_stored(model):
    decoded = LineDecoder(model).decode(b'{"cursor":%s,"events":[{"n":1},{"n" : "x"},{"n":2}]}' % CURSOR)
    assert [event.n for event in decoded.line.events] == [1, 2]
    assert [poison.raw for poison in decoded.poison] == [b'{"n" : "x"}']


@pytest.mark.parametrize("model", [None, Order, PydanticOrder])
def test_a_keep_alive_has_no_events(model):
    assert LineDecoder(model).decode(b'{"cursor":%s}' % CURSOR).line.events is None


def test_no_number_loses_a_digit():
    """Whole numbers of any size, and any number in JSON, arrive unchanged."""
    line = b'{"cursor":%s,"events":[{"n":123456789012345678901234567890}]}' % CURSOR
    assert LineDecoder().decode(line).line.events == [{"n": 123456789012345678901234567890}]
