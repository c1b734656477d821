"""The rules by which an Avro schema may replace the schema before it."""

import json
from datetime import timedelta

import pytest

from nakadi.model.event_type import CompatibilityMode, SchemaType, Version
from nakadi.model.outcomes import IncompatibleSchema, Invalid
from nakadi.schemas.avro.evolution import next_avro_schema
from tests.support.avro import a_field, a_record
from tests.support.builders import A_MOMENT, a_schema

FORWARD, COMPATIBLE, NONE = CompatibilityMode.FORWARD, CompatibilityMode.COMPATIBLE, CompatibilityMode.NONE
LATER = A_MOMENT + timedelta(days=1)
ID, INNER_INT = a_field("id"), a_record(a_field("q", "int"), name="In")
INNER_STRING = a_record(a_field("q"), name="In")


def enum(*symbols, **changes):
    return a_record(a_field("e", {"type": "enum", "name": "E", "symbols": symbols, **changes}))


def one_fixed(size):
    return a_record(a_field("e", {"type": "fixed", "name": "E", "size": size}))


def one_field(of):
    return a_record(a_field("e", of))


def next_schema(old, new, mode=FORWARD):
    current = a_schema(json.dumps(old), type=SchemaType.AVRO, version=Version(1, 2, 3))
    return next_avro_schema(current, json.dumps(new), SchemaType.AVRO, mode, LATER)


def refusal(old, new, mode):
    with pytest.raises(IncompatibleSchema) as refused:
        next_schema(old, new, mode)
    return refused.value


def mismatch(reader, writer, at="/fields/0/type"):
    return ("TYPE_MISMATCH", at, f"reader type: {reader} not compatible with writer type: {writer}")


def missing_branch(branch, at):
    return ("MISSING_UNION_BRANCH", at, f"reader union lacking writer type: {branch}")


NO_DEFAULT = ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1", "n")

# The reference's answers: the old and the new schema, the objections to reading with the new one, and those to reading
# with the old one.
PAIRS = {
    "added": (a_record(ID), a_record(ID, a_field("n", "int")), [NO_DEFAULT], []),
    "added with default": (a_record(ID), a_record(ID, a_field("n", "int", default=1)), [], []),
    "removed": (a_record(ID, a_field("n", "int")), a_record(ID), [], [NO_DEFAULT]),
    "promoted": (one_field("int"), one_field("long"), [], [mismatch("INT", "LONG")]),
    "demoted": (one_field("long"), one_field("int"), [mismatch("INT", "LONG")], []),
    "text and bytes": (one_field("string"), one_field("bytes"), [], []),
    "renamed": (
        a_record(ID),
        a_record(ID, name="Other"),
        [("NAME_MISMATCH", "/name", "expected: shop.Order")],
        [("NAME_MISMATCH", "/name", "expected: shop.Other")],
    ),
    "moved to a namespace": (a_record(ID), a_record(ID, namespace="other"), [], []),
    "symbols added": (
        enum("A"),
        enum("A", "B", "C"),
        [],
        [("MISSING_ENUM_SYMBOLS", "/fields/0/type/symbols", "[B, C]")],
    ),
    "symbols with default": (enum("A", default="A"), enum("A", "B", default="A"), [], []),
    "size": (
        one_fixed(2),
        one_fixed(3),
        [("FIXED_SIZE_MISMATCH", "/fields/0/type/size", "expected: 2, found: 3")],
        [("FIXED_SIZE_MISMATCH", "/fields/0/type/size", "expected: 3, found: 2")],
    ),
    "branch added": (
        one_field(["null", "int"]),
        one_field(["null", "int", "string"]),
        [],
        [missing_branch("STRING", "/fields/0/type/2")],
    ),
    "made a union": (one_field("int"), one_field(["null", "int"]), [], [mismatch("INT", "NULL", "/")]),
    "union no longer": (
        one_field(["null", "string"]),
        one_field("int"),
        [mismatch("INT", "NULL", "/"), mismatch("INT", "STRING", "/")],
        [missing_branch("INT", "/fields/0/type")],
    ),
    "items": (
        one_field({"type": "array", "items": "int"}),
        one_field({"type": "array", "items": "string"}),
        [mismatch("STRING", "INT", "/fields/0/type/items")],
        [mismatch("INT", "STRING", "/fields/0/type/items")],
    ),
    "within a map": (
        one_field({"type": "map", "values": INNER_INT}),
        one_field({"type": "map", "values": INNER_STRING}),
        [mismatch("STRING", "INT", "/fields/0/type/values/fields/0/type")],
        [mismatch("INT", "STRING", "/fields/0/type/values/fields/0/type")],
    ),
    "within a branch": (
        one_field(["null", INNER_INT]),
        one_field(["null", INNER_STRING]),
        [missing_branch("RECORD", "/fields/0/type/1")],
        [missing_branch("RECORD", "/fields/0/type/1")],
    ),
    "renamed with alias": (
        a_record(ID),
        a_record(a_field("key", aliases=["id"])),
        [],
        [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/0", "id")],
    ),
    "within itself": (
        a_record(a_field("v", "int"), a_field("n", ["null", "Order"])),
        a_record(a_field("v", "long"), a_field("n", ["null", "Order"])),
        [],
        [mismatch("INT", "LONG")],
    ),
    "logical type": (one_field("long"), one_field({"type": "long", "logicalType": "timestamp-millis"}), [], []),
    "order": (a_record(ID), a_record(a_field("id", order="descending")), [], []),
}


def detail_of(problems):
    listed = ", ".join(f"{{ type:{of}, location:{at}, message:{message} }}" for of, at, message in problems)
    return f"Failed to evolve avro schema due to [{listed}]"


@pytest.mark.parametrize("mode", list(CompatibilityMode))
@pytest.mark.parametrize("pair", list(PAIRS))
def test_the_mode_decides_who_must_be_able_to_read(pair, mode):
    """`forward` protects readers with the old schema, `compatible` all readers, and `none` no reader. (R186, R187)"""
    old, new, backward, forward = PAIRS[pair]
    against = {FORWARD: forward, COMPATIBLE: [*backward, *forward], NONE: []}[mode]

    if against:
        refused = refusal(old, new, mode)
        assert refused.detail == detail_of(against)
        assert [(each.rule, each.path) for each in refused.reasons] == [each[:2] for each in against]
    else:
        assert str(next_schema(old, new, mode).version) == "2.0.0"


def test_reasons_say_who_cannot_read_what():
    """Each objection names the side that fails, and the reason. (R186, R192)"""
    refused = refusal(a_record(ID), a_record(ID, a_field("n", "int")), COMPATIBLE)

    [reason] = refused.reasons
    assert reason.explanation == (
        "Consumers with the new schema cannot read what is written with the old one: their schema has the field `n`"
        " without a default, and it was not written."
    )


def test_an_equal_schema_changes_nothing():
    """A schema that is equal apart from its documentation leaves the current one as it was, with its text and version.
    (R187)
    """
    old = a_record(ID)

    assert next_schema(old, a_record(a_field("id", doc="x")), COMPATIBLE).text == json.dumps(old)
    assert str(next_schema(old, old).version) == "1.2.3"


@pytest.mark.parametrize("mode", list(CompatibilityMode))
def test_avro_may_follow_any_json_schema(mode):
    """An Avro schema that follows a JSON schema is a major change, in every mode. (R184)"""
    current = a_schema('{"properties": {"other": {}}}', version=Version(1, 2, 3))
    found = next_avro_schema(current, json.dumps(a_record(ID)), SchemaType.AVRO, mode, LATER)

    assert (str(found.version), found.type, found.created_at) == ("2.0.0", SchemaType.AVRO, LATER)


def test_json_schema_does_not_follow_avro():
    """A JSON schema cannot follow an Avro schema. (R185)"""
    current = a_schema(json.dumps(a_record(ID)), type=SchemaType.AVRO)

    with pytest.raises(Invalid, match=r"^Cannot change from avro_schema to json_schema!$"):
        next_avro_schema(current, "{}", SchemaType.JSON, NONE, LATER)


def test_wide_unions_take_bounded_work():
    """Each branch of a union is compared with each branch of the other union, so schemas with too many pairs are
    refused. (R186)
    """

    def wide_union(size):
        return one_field([{"type": "fixed", "name": f"F{number}", "size": size} for number in range(600)])

    with pytest.raises(Invalid, match="too entangled"):
        next_schema(wide_union(1), wide_union(2), COMPATIBLE)


def test_only_the_first_of_many_problems_are_shown():
    """The length of a refusal is limited. (R186)"""
    old = a_record(*(a_field(f"f{number}") for number in range(500)))

    assert len(refusal(old, a_record(), FORWARD).reasons) == 100
