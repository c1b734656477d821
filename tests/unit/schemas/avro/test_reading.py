"""Reading values from their binary form, and writing them back."""

import json
import math
import random
import struct
from decimal import Decimal

import orjson
import pytest

from nakadi.schemas.avro.reading import AvroInput, BadAvro, TooMuchJson, make_reader, write_decimal
from nakadi.schemas.avro.types import parse_avro_schema
from nakadi.schemas.avro.writing import DoesNotFit, is_unambiguous_in_json, make_writer
from nakadi.schemas.strict_json import MAX_JSON_DEPTH
from tests.support.avro import a_decimal, a_field, a_record, encode

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "X", "size": 2}
INNER = a_record(a_field("q", "double"), name="In")
EVERYTHING = a_record(
    a_field("n", "null"),
    a_field("b", "boolean"),
    a_field("i", "int"),
    a_field("l", "long"),
    a_field("f", "float"),
    a_field("d", "double"),
    a_field("s"),
    a_field("by", "bytes"),
    a_field("e", ENUM),
    a_field("x", FIXED),
    a_field("a", {"type": "array", "items": ["null", "int", "string"]}),
    a_field("m", {"type": "map", "values": INNER}),
    a_field("next", ["null", "Order"]),
)


def read(schema, payload, room=1_000_000):
    source = AvroInput(payload, room)
    value = make_reader(parse_avro_schema(json.dumps(schema)))(source)
    source.check_at_end()
    return value


def write(schema, value):
    out = bytearray()
    make_writer(parse_avro_schema(json.dumps(schema)))(value, out)
    return bytes(out)


def a_value(rng, depth=0):
    return {
        "n": None,
        "b": rng.random() < 0.5,
        "i": rng.choice([0, -1, 2**31 - 1, -(2**31), rng.randrange(1000)]),
        "l": rng.choice([0, -64, 64, 2**63 - 1, -(2**63), 2**53 + 1]),
        "f": struct.unpack("<f", struct.pack("<f", rng.uniform(-1e6, 1e6)))[0],
        "d": rng.choice([0.0, -0.0, 1e300, rng.random()]),
        "s": rng.choice(["", 'ü\n"', "\U0001f600", "x" * rng.randrange(300)]),
        "by": rng.randbytes(rng.randrange(20)),
        "e": rng.choice("AB"),
        "x": rng.randbytes(2),
        "a": [rng.choice([None, 7, "z"]) for _ in range(rng.randrange(4))],
        "m": {key: {"q": rng.random()} for key in "kü"[: rng.randrange(3)]},
        "next": a_value(rng, depth + 1) if depth < 3 and rng.random() < 0.5 else None,
    }


def test_what_fastavro_writes_is_read_and_written_back():
    """A value that fastavro has written is read into JSON, and written back as the same bytes. (P152, S184)"""
    rng = random.Random(7)
    for _ in range(100):
        value = a_value(rng)
        payload = encode(EVERYTHING, value)
        found = json.loads(json.dumps(read(EVERYTHING, payload)))

        assert write(EVERYTHING, found) == payload
        assert (found["by"], found["x"]) == (value["by"].decode("latin-1"), value["x"].decode("latin-1"))
        assert (found["l"], found["s"], found["a"]) == (value["l"], value["s"], value["a"])


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
@pytest.mark.parametrize("of", ["float", "double"])
def test_what_is_no_number_in_json_is_a_text(of, value, text):
    """A value that JSON has no number for becomes the same string as in Java. (P152)"""
    assert read(of, encode(of, value)) == text
    assert write(of, text) == encode(of, value)


def test_a_float_is_as_short_as_it_can_be():
    """A float has fewer digits than a double with the same value. (P152)"""
    assert read("float", encode("float", 0.1)) == 0.1


def test_blocks_may_say_their_length():
    """A block with a negative count also has its number of bytes. (P145)"""
    array = {"type": "array", "items": "int"}

    assert read(array, b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]
    with pytest.raises(BadAvro, match="length that it says"):
        read(array, b"\x03\x06\x02\x04\x00")


ARRAY, MAP = {"type": "array", "items": "null"}, {"type": "map", "values": "null"}


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ("string", b"", "It ends within a number"),
        ("string", b"\x80", "It ends within a number"),
        ("string", b"\x08ab", "A length is 4, and 2 bytes follow"),
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "A length is 9223372036854775807, and 0 bytes follow"),
        ("string", b"\x01", "A length is -1, and 0 bytes follow"),
        ("string", b"\x02\xff", "A string is not in UTF-8"),
        ("long", b"\xff" * 9 + b"\x02", "A number has more than 64 bits"),
        ("long", b"\xff" * 20, "A number has more than 10 bytes"),
        ("int", b"\xfe\xff\xff\xff\x1f", "An int has more than 32 bits"),
        ("boolean", b"\x02", "A boolean is 2"),
        ("double", b"1234567", "A length is 8, and 7 bytes follow"),
        ("int", b"\x02\x02", "1 bytes follow the end of the value"),
        (ENUM, b"\x04", "The enum E has no symbol 2"),
        (ENUM, b"\x01", "The enum E has no symbol -1"),
        (["null"], b"\x01", "A union has no branch -1"),
        (MAP, b"\x04\x02a\x02a\x00", "A map has a key twice"),
        (ARRAY, b"\x02", "It ends within a number"),
    ],
)
def test_bytes_that_are_not_as_the_schema_says(schema, payload, reason):
    """Bytes that do not match the schema are refused, each fault with a reason of its own. (P151)"""
    with pytest.raises(BadAvro) as refused:
        read(schema, payload)
    assert str(refused.value) == reason


@pytest.mark.parametrize("schema", [ARRAY, MAP, {"type": "array", "items": a_record(name="Empty")}])
def test_a_count_is_not_believed(schema):
    """A count is not trusted, because items may have no bytes, so a few bytes could fill the memory. (P151)"""
    with pytest.raises((TooMuchJson, BadAvro)):
        read(schema, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")


def test_a_small_payload_does_not_become_large():
    """The size of a value in JSON is counted, including the names of its members. (P151)"""
    schema = {"type": "array", "items": a_record(a_field("x" * 1000, "null"))}

    with pytest.raises(TooMuchJson):
        read(schema, b"\x80\x7d\x00", room=100_000)


def test_deep_values_are_refused():
    """A list with a hundred thousand nested lists would overflow the stack. (P151)"""
    with pytest.raises(BadAvro, match="nested deeper than 200 levels"):
        read(a_record(a_field("next", ["null", "Order"])), b"\x02" * 100_000)


def test_no_bytes_make_a_reader_fail_in_another_way():
    """Any bytes either give a value or are refused. (P151)"""
    rng, reader = random.Random(11), make_reader(parse_avro_schema(json.dumps(EVERYTHING)))
    good = encode(EVERYTHING, a_value(rng))
    for _ in range(2000):
        payload = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        try:
            reader(AvroInput(bytes(payload[: rng.randrange(len(payload) + 1)]), 10_000))
        except (BadAvro, TooMuchJson):
            continue


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (["null", "int", "string", {"type": "array", "items": "int"}], True),
        (["int", "double"], True),
        (["int", "long"], False),
        (["string", "bytes"], False),
        (["string", "double"], False),
        (["string", ENUM], False),
        ([INNER, a_record(a_field("other"), name="Other")], True),
        ([INNER, a_record(a_field("q"), name="Other")], False),
        ([INNER, {"type": "map", "values": "int"}], False),
        ({"type": "array", "items": ["int", "long"]}, False),
        (["int", a_decimal(9, 2)], True),
        (["int", a_decimal(9)], False),
        (["double", a_decimal(9, 2)], False),
        (["string", a_decimal(9, 2)], True),
        (a_decimal(15, 2), True),
        (a_decimal(16, 2), False),
        (a_decimal(16, 2) | {"type": "fixed", "name": "F", "size": 20}, False),
    ],
)
def test_branches_must_look_different_in_json(of, expected):
    """The branches of a union must look different in JSON; otherwise, JSON would not show to which one a value
    belongs. (S184)
    """
    assert is_unambiguous_in_json(parse_avro_schema(json.dumps(a_record(a_field("x", of))))) is expected


@pytest.mark.parametrize(("of", "value"), [("int", "x"), ("string", 1), (ENUM, "C"), (["null"], 1), (INNER, {})])
def test_a_value_of_another_type_does_not_fit(of, value):
    """A value that does not fit its type is refused; only another program can have stored it. (S184)"""
    with pytest.raises(DoesNotFit):
        write(of, value)


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (a_decimal(9, 2), "12.34"),
        (a_decimal(9, 2), "-0.01"),
        (a_decimal(9, 2), "-1.29"),
        (a_decimal(9, 2), "1.27"),
        (a_decimal(9, 2), "1.28"),
        (a_decimal(9, 2), "0.00"),
        (a_decimal(9), "-129"),
        (a_decimal(15, 15), "0.123456789012345"),
        (a_decimal(15, 1), "-99999999999999.9"),
        (a_decimal(9, 2) | {"type": "fixed", "name": "F", "size": 8}, "-12.34"),
        (["null", a_decimal(9, 2)], "12.00"),
        (["int", a_decimal(9, 2)], "12.00"),
        (["double", a_decimal(9)], "12"),
    ],
)
def test_a_decimal_is_a_number(of, value):
    """A number that fastavro writes keeps all its digits, and is written as the same bytes. (P152, S184)"""
    payload = encode(of, Decimal(value))
    text = orjson.dumps(read(of, payload), default=write_decimal)

    assert text == value.encode()
    assert write(of, orjson.loads(text)) == payload


def test_a_decimal_has_all_digits():
    """A decimal keeps any number of digits; a value that is too long is refused before it is converted to text. (P151,
    P152)"""
    of = a_decimal(1000, 10)
    for digits in ("9" * 1000, "1", "1" + "0" * 60):
        number = int(digits)
        raw = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        text = orjson.dumps(read(of, encode("bytes", raw)), default=write_decimal).decode()
        assert text.replace(".", "").lstrip("0") == digits
        assert len(text.partition(".")[2]) == 10
    for raw, reason in [
        ((10**1000).to_bytes(416, "big"), "A decimal has more than 1000 digits"),
        ((-(10**1000)).to_bytes(416, "big", signed=True), "A decimal has more than 1000 digits"),
        (b"\x7f" * 1_000_000, "A decimal has more than 1000 digits"),
        (b"", "A decimal has no bytes"),
    ]:
        with pytest.raises(BadAvro, match=reason):
            read(of, encode("bytes", raw))


@pytest.mark.parametrize("value", [1.234, 1e300, True, "1", None])
def test_a_number_with_other_digits_is_no_decimal(value):
    """A number with other digits than the decimal allows is refused; only another program can have stored it. (S184)"""
    for of in (a_decimal(9, 2), a_decimal(9, 2) | {"type": "fixed", "name": "F", "size": 4}):
        with pytest.raises(DoesNotFit):
            write(of, value)


@pytest.mark.parametrize(("value", "raw"), [(-1.28, b"\x80"), (1.27, b"\x7f"), (1.28, b"\x00\x80"), (0.0, b"\x00")])
def test_a_decimal_has_as_few_bytes_as_possible(value, raw):
    """A decimal is written with as few bytes as possible, as in Java. (S184)"""
    assert write(a_decimal(9, 2), value) == encode("bytes", raw)


def test_nothing_else_is_written_as_a_decimal():
    """Writing any other value as a decimal is a mistake in the broker, and raises an error. (P152)"""
    with pytest.raises(TypeError):
        orjson.dumps(object(), default=write_decimal)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": 0},
        {"precision": 0, "scale": 0},
        {"precision": 1001},
        {"precision": True},
        {"precision": None},
        {"precision": 2, "scale": 3},
        {"scale": -1},
        {"scale": "1"},
        {"logicalType": "decimals"},
        {"type": "fixed", "name": "F", "size": 3, "precision": 7},
        {"type": "fixed", "name": "F", "size": 0, "precision": 1},
    ],
)
def test_a_decimal_without_sense_is_bytes(changes):
    """A decimal with invalid attributes is treated as bytes, as in the library for Java. (P152)"""
    of = parse_avro_schema(json.dumps(a_decimal(6, 2) | changes))
    assert of.decimal is None


def test_a_fixed_decimal_has_the_digits_that_its_bytes_hold():
    """(P152)"""
    of = parse_avro_schema(json.dumps(a_decimal(6, 2) | {"type": "fixed", "name": "F", "size": 3}))
    assert (of.decimal.precision, of.decimal.scale) == (6, 2)


LIST_OF_ORDERS = a_record(a_field("of", {"type": "array", "items": "Order"}))
MAP_OF_ORDERS = a_record(a_field("of", {"type": "map", "values": "Order"}))


@pytest.mark.parametrize(
    ("schema", "payload_of"),
    [
        # Each level is a record.
        (a_record(a_field("next", ["null", "Order"])), lambda levels: b"\x02" * (levels - 1) + b"\x00"),
        # Two levels are a record and the array or map with the next one.
        (LIST_OF_ORDERS, lambda levels: b"\x02" * (levels // 2 - 1) + b"\x00" * (levels // 2)),
        (MAP_OF_ORDERS, lambda levels: b"\x02\x00" * (levels // 2 - 1) + b"\x00" * (levels // 2)),
    ],
)
def test_the_depth_is_that_of_json(schema, payload_of):
    """Values may have a hundred and ninety-nine levels, so they are no deeper than JSON may be. (P151, P171)"""
    assert read(schema, payload_of(MAX_JSON_DEPTH - 2))
    with pytest.raises(BadAvro, match="nested deeper"):
        read(schema, payload_of(MAX_JSON_DEPTH))


@pytest.mark.parametrize(
    "of", [INNER, {"type": "array", "items": "int"}, {"type": "map", "values": "int"}, ["null", INNER]]
)
def test_siblings_are_not_deep(of):
    """A long list of records or lists counts as deep as one of them. (P152)"""
    schema = {"type": "array", "items": of}
    value = [{"q": 1.0}] * 500 if "In" in json.dumps(of) else [{}] * 500 if "map" in json.dumps(of) else [[1]] * 500
    assert read(schema, encode(schema, value)) == value


@pytest.mark.parametrize(
    ("of", "value"),
    [
        ("string", "x" * 100),
        ("bytes", b"x" * 100),
        ({"type": "fixed", "name": "F", "size": 100}, b"x" * 100),
        ({"type": "enum", "name": "E", "symbols": ["x" * 100]}, "x" * 100),
        ({"type": "map", "values": "null"}, {"x" * 100: None}),
        ({"type": "array", "items": "null"}, [None] * 50),
        ({"type": "map", "values": {"type": "array", "items": "null"}}, {str(n): [] for n in range(20)}),
        (a_record(*[a_field(f"f{n}" * 5, "null") for n in range(20)]), {f"f{n}" * 5: None for n in range(20)}),
        (a_decimal(100), Decimal(1)),
    ],
)
def test_each_type_takes_room(of, value):
    """The counted size of a value is the least that its type takes in JSON. (P151)"""
    payload = encode(of, value)
    assert read(of, payload, room=1000) is not None
    with pytest.raises(TooMuchJson):
        read(of, payload, room=99)


def test_room_is_added_once():
    """A value that needs more than the additional room is too long, in however many parts it comes. (P171)"""
    asked = []

    def extend(source):
        asked.append(source.room)
        source.room += 1000

    payload = encode({"type": "array", "items": "string"}, ["x" * 100] * 15)
    reader = make_reader(parse_avro_schema(json.dumps({"type": "array", "items": "string"})))
    with pytest.raises(TooMuchJson):
        reader(AvroInput(payload, 100, extend))
    assert len(asked) == 1
    assert len(reader(AvroInput(payload, 600, extend))) == 15
    assert len(asked) == 2
