"""Lines become typed events; events that do not fit are set aside, and do not delay others."""

import msgspec
import pydantic
import pytest

from nakadi_client.decoding import CloudEventDecoder, LineDecoder

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


def test_a_line_of_cloud_events_has_the_place_of_the_last():
    """A line of CloudEvents has the position of its last event. An empty list has no position, and a Problem is an
    object. (E20, E23)
    """
    places = b'"partition":"0","offset":"%d","eventtype":"t"'
    text = b'[{"n":1,%b},{"n" : "x",%b}]' % (places % 1, places % 2)
    decoded = CloudEventDecoder(Order).decode(text)
    assert [event.n for event in decoded.line.events] == [1]
    assert [poison.raw for poison in decoded.poison] == [b'{"n" : "x",%b}' % (places % 2)]
    assert (decoded.line.cursor.place, decoded.line.cursor.offset) == (("t", "0"), "2")
    empty = CloudEventDecoder().decode(b"[]").line
    assert (empty.cursor, empty.events) == (None, [])
    problem = CloudEventDecoder().decode(b'{"title":"Gone","detail":"deleted"}').line
    assert (problem.cursor, problem.events, problem.detail) == (None, None, "deleted")
    with pytest.raises(msgspec.DecodeError):
        CloudEventDecoder().decode(b'[{"n":1}]')
