"""A batch that is decoded at once is valid and strict JSON: what is not, or cannot be told, is declined."""

import json

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec import UNSET

from nakadi.common.work import NeedsThread, run_without_blocking
from nakadi.model.event_type import CleanupPolicy
from nakadi.schemas import strict_json
from nakadi.schemas.batch_decoder import make_batch_decoder
from nakadi.schemas.document import SchemaDocument, metadata_schema
from nakadi.schemas.validation import compile_validator
from tests.support.everything import choose_count
from tests.unit.schemas.test_shapes import OBJECTS, VALUES, like

TEXT = {"type": "string"}
ORDER = {
    "type": "object",
    "required": ["n"],
    "properties": {
        "n": {"type": "integer", "minimum": 0},
        "sum": {"type": "number"},
        "note": {"type": ["string", "null"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": TEXT, "a:b": TEXT}}},
        "names": {"type": "object", "additionalProperties": TEXT},
    },
}
EID = "105a76d8-db49-4144-ace7-e683e8f4ba46"
SENT = {"eid": EID, "occurred_at": "2026-11-21T12:00:00Z"}


def with_metadata(schema):
    sent = metadata_schema("order", CleanupPolicy.DELETE)
    return {**schema, "properties": {**schema["properties"], "metadata": sent}, "required": ["metadata"]}


def decoder_for(schema, *, has_metadata=False):
    return make_batch_decoder(
        SchemaDocument.from_root(schema), compile_validator(schema).compile_parts, has_metadata=has_metadata
    )


def decoded(schema, body, *, has_metadata=False):
    decoder = decoder_for(schema, has_metadata=has_metadata)
    assert decoder is not None
    return decoder.decode(body if isinstance(body, bytes) else body.encode())


# No type has a member with a quote in its name.
SCHEMAS = OBJECTS.map(lambda schema: json.loads(json.dumps(schema).replace('c\\"', "c")))
FURTHER_MEMBERS = some.dictionaries(some.sampled_from(["x", "a:b", 'y"', "é"]), VALUES, max_size=3)


def with_further_members(event, data):
    """The same with members beside those that a schema may name, in the objects within it too."""
    if isinstance(event, list):
        return [with_further_members(each, data) for each in event]
    if not isinstance(event, dict):
        return event
    return {name: with_further_members(each, data) for name, each in event.items()} | data.draw(FURTHER_MEMBERS)


@settings(max_examples=choose_count(60, 150), deadline=None)
@given(
    some.data(), some.integers(0, 300), some.sampled_from([*[""] * 3, " ", ",", "0", "9" * 20, '"', "\\u003a", "\n"])
)
def test_what_is_decoded_is_valid_and_strict(data, at, inserted):
    """Whatever is decoded, the thorough validator accepts and the strict parser reads, and its text has no blanks."""
    schema = data.draw(SCHEMAS)
    decoder = decoder_for(schema)
    events = data.draw(some.lists(like(schema), min_size=1, max_size=4))
    events = with_further_members(events, data) if data.draw(some.booleans()) else events
    blanks = data.draw(some.sampled_from([None, (",", ":")]))
    text = json.dumps(events, ensure_ascii=data.draw(some.booleans()), separators=blanks)
    body = (text[: at % len(text)] + inserted + text[at % len(text) :]).encode("utf-8", "surrogatepass")

    # Members that the schema does not name are found the first time, and have a place from then on.
    batch = decoder and (decoder.decode(body) or decoder.decode(body))

    if batch:
        read, _ = strict_json.parse_leading_value(body.decode())
        validator = compile_validator(schema)
        assert len(read) == len(batch.events)
        assert all(type(event) is dict and validator.accepts(event) for event in read)
        assert orjson.loads(batch.text) == orjson.loads(body)
        assert batch.text == msgspec.json.format(body, indent=-1)


@pytest.mark.parametrize(
    "event",
    [
        *(
            '{"n":1}',
            '{ "n" : 1 ,\n"note":null}',
            '{"n": 1, "names": {"a b": "  "}}',
            '{"n": 1,"names":{"a b":"\\u0020"}}',
            '{"n":9223372036854775807}',
            '{"n":1,"sum":1.50}',
            '{"sum":1E2,"n":0}',
        ),
        *('{"n":1,"lines":[{"sku":"a:b","a:b":"\\u003a"},{}]}', '{"n":1,"note":"\\u00e9"}', '{"n":1,"names":{"x":""}}'),
    ],
)
def test_ordinary_events_are_decoded(event):
    """Members in any order, blanks, escapes and all spellings of numbers that are strict JSON."""
    batch = decoded(ORDER, f"[{event},{event}]")
    assert len(batch.events) == 2
    assert batch.text == msgspec.json.format(f"[{event},{event}]".encode(), indent=-1)


@pytest.mark.parametrize(
    "event",
    [
        *(
            '{"n":1,"n":1}',
            '{"n":1,"\\u006e":1}',
            '{"n":1,"lines":[{"sku":"","sku":""}]}',
            '{"n":1,"names":{"x":"","x":""}}',
        ),
        *('{"n":1,"n":2,"note":"\\u003a"}', '{"n":1,"x":1}', '{"n":1.0}', '{"n":1e2}', '{"n":-1}', '{"note":""}'),
        *('{"n":9223372036854775808}', '{"n":1,"sum":9223372036854775808}', '{"n":1,"sum":-9223372036854775809}'),
        *(
            '{"n":1,"sum":1e400}',
            '{"n":1,"note":"\ud800"}',
            '{"n":1,"note":"\\ud800"}',
            '{"n":1,"note":"\t"}',
            '{"n":01}',
        ),
        *("null", "[]", '{"n":1},', '{"n":1}]', '{"n":1', '{"n":1}{"n":1}'),
    ],
)
def test_what_is_not_certain_is_declined(event):
    """Repeated and unknown members, odd numbers and what is no JSON are left to those who can explain them."""
    assert decoded(ORDER, f'[{{"n":1}},{event}]'.encode("utf-8", "surrogatepass")) is None


@pytest.mark.parametrize(
    "more",
    [
        *('"x":1', '"x":[1,{"y":null}]', '"x":"\\u003a","a:b":{"c:d":":"}', '"x":-9223372036854775808,"é":1E2'),
        *('"lines":[{"y":1},{}]', '"lines":[{"sku":"","z":{}}],"x":true', '"x":"\\"n\\":1"'),
    ],
)
def test_members_that_the_schema_does_not_name_are_kept(more):
    """They are found in the first batch that has them, and every later one is decoded at once, and loses nothing."""
    decoder = decoder_for(ORDER)
    body = f'[{{"n":1}},{{"n":2,{more}}}]'.encode()
    assert decoder.decode(body) is None
    batch = decoder.decode(body)
    assert (len(batch.events), batch.text) == (2, body)
    assert len(decoder.decode(b'[{"n":1}]').events) == 1


@pytest.mark.parametrize(
    "more",
    [
        *('"x":1,"x":1', '"x":{"a":1,"a":1}', '"x":9223372036854775808', '"x":1e400', '"x":"\\ud800"', '"x":01'),
        *('"x":[[[[[1]]]]]', '"x":1,"\\u0078":1', '"lines":[{"y":1,"y":2}]', f'"x":{"1" * 30}', '"x":[1,]'),
    ],
)
def test_members_that_the_schema_does_not_name_are_read_strictly(more):
    """Repeated, too large, too deep: what is wrong with them is found, though the schema says nothing of them."""
    decoder = decoder_for(ORDER)
    known = b'[{"n":1,"x":1,"lines":[{"y":1}]}]'
    assert decoder.decode(known) is None
    assert decoder.decode(known).text == known
    for _ in range(3):
        assert decoder.decode(f'[{{"n":1,{more}}}]'.encode()) is None


def test_members_of_any_name_are_met_up_to_a_limit():
    """A type does not grow for ever: new names beyond the limit are declined, and the known ones stay."""
    decoder = decoder_for(ORDER)
    many = [b'[{"n":1,"x%d":1}]' % number for number in range(1000)]
    for body in many:
        decoder.decode(body)
    decoder._left_out = 0
    assert len(decoder.decode(many[0]).events) == 1
    assert decoder.decode(many[-1]) is None


@pytest.mark.parametrize("name", ['"', "\\", "\n", "x" * 200])
def test_odd_names_are_never_met(name):
    """What a type can have no member for is declined."""
    decoder = decoder_for(ORDER)
    body = orjson.dumps([{"n": 1, name: 1}])
    assert [decoder.decode(body) for _ in range(3)] == [None] * 3


def test_quick_work_meets_no_new_members():
    """A new type takes long to make, so this is left to a thread."""
    decoder = decoder_for(ORDER)
    with pytest.raises(NeedsThread):
        run_without_blocking(lambda: decoder.decode(b'[{"n":1,"x":1}]'))
    assert len(run_without_blocking(lambda: decoder.decode(b'[{"n":1}]')).events) == 1


@pytest.mark.parametrize(
    "value", ['{"a":1,"a":1}', "9223372036854775808", "1" * 30, "[" * 250 + "]" * 250, '{"":9e999}']
)
def test_values_that_may_be_anything_are_read_strictly(value):
    """Where a schema says nothing of a value, it must be strict JSON all the same."""
    schema = {"type": "object", "required": ["n"]}
    assert len(decoded(schema, '[{"n":{"a":[1,null,"9999999999999999999"]}}]').events) == 1
    assert decoded(schema, f'[{{"n":{value}}}]') is None


AMOUNT = {"type": "object", "properties": {"net": {"type": "number"}}}
UNTYPED_PARTS = {
    "a pattern": ({"type": "string", "pattern": "^o-[0-9]+$"}, "o-1", "o-"),
    "a pattern that null need not match": ({"type": ["string", "null"], "pattern": "^o$"}, None, "p"),
    "a format": ({"type": "string", "format": "ipv4"}, "10.0.0.1", "10.0.0.256"),
    "values without a type": ({"enum": ["new", 1, None, {"a": [1]}]}, {"a": [1]}, "old"),
    "one value of several types": ({"type": ["string", "integer"]}, 1, 1.5),
    "a multiple": ({"type": "number", "multipleOf": 0.01}, 12.34, 12.345),
    "one of two": ({"oneOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]}, {"a": 1}, {"b": 1}),
    "not": ({"not": {"type": "null"}}, 0, None),
    "different items": ({"type": "array", "uniqueItems": True}, [1, "1", [1]], [1, [2], 1.0]),
    "items by position": ({"items": [TEXT, {"type": "integer"}]}, ["a", 1], [1]),
    "names by pattern": ({"type": "object", "patternProperties": {"^x": TEXT}}, {"x": "", "y": 1}, {"x": 1}),
    "few members": ({"type": "object", "maxProperties": 1}, {"x": {"y": 2}}, {"x": 1, "y": 2}),
    "an exclusive bound": ({"type": "integer", "exclusiveMinimum": 0}, 1, 0),
    "one of two beside members": (
        {**AMOUNT, "oneOf": [{"required": ["net"]}, {"required": ["gross"]}]},
        {"net": 1, "more": 2},
        {"net": 1, "gross": 1},
    ),
    "conditions beside members": (
        {**AMOUNT, "if": {"required": ["net"]}, "then": {"minProperties": 2}, "else": {"required": ["gross"]}},
        {"net": 1, "tax": 2},
        {"net": 1},
    ),
    "dependencies beside members": ({**AMOUNT, "dependencies": {"net": ["gross"]}}, {"net": 1, "gross": 1}, {"net": 1}),
    "names by pattern beside members": (
        {**AMOUNT, "patternProperties": {"^[xn]": {"type": ["string", "number"]}}},
        {"net": 1, "x": "", "y": []},
        {"net": 1, "x": []},
    ),
    "further members of one kind": (
        {**AMOUNT, "additionalProperties": TEXT},
        {"net": 1, "more": ""},
        {"net": 1, "more": 1},
    ),
    "further members by pattern only": (
        {**AMOUNT, "patternProperties": {"^x": TEXT}, "additionalProperties": False},
        {"net": 1, "x": ""},
        {"net": 1, "y": ""},
    ),
    "what is defined elsewhere": ({"$ref": "#/definitions/address"}, {"zip": "12345", "more": 1}, {"zip": "x"}),
    "what holds itself": ({"$ref": "#/definitions/node"}, {"left": {"left": {}}}, {"left": {"left": {"left": 1}}}),
}
DEFINITIONS = {
    "address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
    "node": {"type": "object", "properties": {"left": {"$ref": "#/definitions/node"}}},
}
PLACES = {
    "at the top": (lambda part: {"v": part}, lambda value: {"v": value}),
    "in an object": (
        lambda part: {"o": {"type": ["object", "null"], "properties": {"v": part}}},
        lambda value: {"o": {"v": value}},
    ),
    "in a list": (
        lambda part: {"l": {"type": "array", "items": {"type": "object", "properties": {"v": part}}}},
        lambda value: {"l": [{}, {"v": value}]},
    ),
    "in a list of lists": (
        lambda part: {"l": {"type": "array", "items": {"type": "array", "items": part}}},
        lambda value: {"l": [[], [value]]},
    ),
    "by name": (
        lambda part: {"m": {"type": "object", "additionalProperties": part}},
        lambda value: {"m": {"x": value}},
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(("part", "good", "bad"), UNTYPED_PARTS.values(), ids=UNTYPED_PARTS)
def test_what_a_type_cannot_say_is_checked_in_its_place(part, good, bad, place):
    """Events that fit such a part are decoded with all others, and one that does not is declined."""
    make_properties, make_event = place
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, **make_properties(part)}}
    decoder = decoder_for({**schema, "definitions": DEFINITIONS, "$schema": "http://json-schema.org/draft-07/schema"})
    fitting = orjson.dumps([{}, {"n": 1}, make_event(good)])
    batch = decoder.decode(fitting) or decoder.decode(fitting)
    assert (len(batch.events), batch.text) == (3, fitting)
    assert decoder.decode(orjson.dumps([make_event(good), make_event(bad)])) is None


def test_what_is_said_of_whole_events_is_checked_beside_their_type():
    """Members that the schema does not name count as well, in the first batch that has them and in later ones."""
    schema = {"type": "object", "properties": {"a": TEXT}, "minProperties": 2, "not": {"required": ["c"]}}
    decoder = decoder_for(schema)
    fitting = b'[{"a":"","b":1}]'
    for body, more in ((b'[{"b":1,"a":"","x":{"y":1}}]', "x"), (fitting, "b")):
        batch = decoder.decode(body) or decoder.decode(body)
        assert batch.text == body, more
    for body in (b'[{"a":""}]', b'[{"a":"","c":1}]', b'[{"a":"","b":1},{}]'):
        assert decoder.decode(body) is None
    decoder._left_out = 0
    assert decoder.decode(fitting).text == fitting


def test_events_are_objects_whatever_their_schema_says():
    """A schema without a type is decoded as that of an object."""
    decoder = decoder_for({"properties": {"a": TEXT}, "additionalProperties": {"type": "integer"}})
    fitting = b'[{"a":"","b":1}]'
    assert (decoder.decode(fitting) or decoder.decode(fitting)).text == fitting
    for body in (b'[{"a":1}]', b'[{"b":"c"}]', b"[1]", b"[[]]"):
        assert decoder.decode(body) is None


def test_what_is_checked_in_many_places_is_bounded():
    """A part that takes many steps for many values is left to the thorough way, which waits for its turn."""
    laborious = {"not": {"anyOf": [{"enum": [str(number)]} for number in range(200)]}}
    decoder = decoder_for({"type": "object", "properties": {"v": {"type": "array", "items": laborious}}})
    assert decoder.decode(orjson.dumps([{"v": ["a"] * 10}])) is not None
    assert decoder.decode(orjson.dumps([{"v": ["a"] * 1000}] * 3)) is None


def test_a_batch_of_many_members_that_are_missing_takes_no_memory():
    """Each decoded object has a place for each member that its schema knows, so many of them are declined."""
    wide = {"type": "object", "properties": {f"p{number}": TEXT for number in range(1000)}}
    assert len(decoded(wide, b"[" + b",".join([b"{}"] * 100) + b"]").events) == 100
    assert decoded(wide, b"[" + b",".join([b"{}"] * 10_000) + b"]") is None


@pytest.mark.parametrize(
    "sent",
    [
        *({"eid": "x"}, {"eid": EID + "\n"}, {"occurred_at": "2026-02-29T12:00:00Z"}, {"occurred_at": "yesterday"}),
        *({"parent_eids": ["x"]}, {"published_by": "x"}, {"event_type": "another"}, {"x": 1}, {"span_ctx": {"a": 1}}),
        *({"eid": None}, {"partition": 1}, {"partition_compaction_key": "k"}),
    ],
)
def test_metadata_that_are_not_valid_are_declined(sent):
    """Metadata are held to their schema as everything else is, and their time has to be a moment."""
    schema = with_metadata(ORDER)
    rich = {**SENT, "event_type": "order", "flow_id": "f", "span_ctx": {"a": "b"}, "partition": "7"}
    rich |= {"parent_eids": [EID], "occurred_at": "2024-02-29T12:00:00Z"}
    assert len(decoded(schema, json.dumps([{"metadata": rich, "n": 1}]), has_metadata=True)) == 1
    assert decoded(schema, json.dumps([{"metadata": SENT | sent, "n": 1}]), has_metadata=True) is None


def test_what_events_have_at_a_path():
    """Each event's value, in objects that the schema names and in others; nothing where the path leads nowhere."""
    schema = {"type": "object", "properties": {"a": {"type": ["object", "null"], "properties": {"b": {}}}, "m": {}}}
    events = [{"a": {"b": 1}, "m": {"b": 2}}, {"a": None}, {"a": {"b": [1]}, "m": 3}, {"a": {}}]
    batch = decoded(schema, json.dumps(events, separators=(",", ":")))
    paths = [("a", "b"), ("m", "b"), ("x",), ("m",)]
    assert list(batch.rows_at(paths)) == [
        (1, 2, UNSET, {"b": 2}),
        (UNSET, UNSET, UNSET, UNSET),
        ([1], UNSET, UNSET, 3),
        (UNSET, UNSET, UNSET, UNSET),
    ]
    assert [msgspec.to_builtins(event) for (event,) in batch.rows_at([()])] == events


def test_a_batch_that_is_not_valid_ends_a_pause():
    """It says nothing about the next ones, so that one producer's faults cost the others nothing."""
    decoder = decoder_for(ORDER)
    for _ in range(20):
        assert decoder.decode(b'[{"n":"not valid"}]') is None
        decoder.end_pause()
        assert len(decoder.decode(b'[{"n":1}]')) == 1


def test_other_forms_are_tried_less_and_less_often():
    """A producer whose batches are declined pays for few attempts; the first success ends that."""
    decoder = decoder_for(ORDER)

    def tried():
        """How many batches are left out until one is decoded."""
        return next(number for number in range(1000) if decoder.decode(b'[{"n":1}]') is not None)

    assert decoder.decode(b'[{"x":1}]') is None
    assert tried() == 0
    for _ in range(1000):
        assert decoder.decode(b'[{"x":1}]') is None
    assert 0 < tried() < 256
    assert tried() == 0
