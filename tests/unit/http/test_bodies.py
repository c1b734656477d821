"""Reading request bodies."""

import pytest

from nakadi.http.bodies import ObjectReader, json_document, object_body
from nakadi.http.drafts import event_type_draft, subscription_draft
from nakadi.http.message import Request
from nakadi.model.outcomes import Malformed


def refusal(draft, body) -> str:
    with pytest.raises(Malformed) as refused:
        draft(ObjectReader.from_value(body))
    return refused.value.detail


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"name": {}}, "name"),
        ({"partition_key_fields": "x"}, "partition_key_fields"),
        ({"partition_key_fields": ["x", []]}, "partition_key_fields[1]"),
        ({"schema": "x"}, "schema"),
        ({"schema": {"type": []}}, "schema.type"),
        ({"options": {"retention_time": True}}, "options.retention_time"),
        ({"options": {"retention_time": 2**63}}, "options.retention_time"),
        ({"default_statistic": {"message_size": "x"}}, "default_statistic.message_size"),
        ({"authorization": {"admins": [None]}}, "authorization.admins[0]"),
        ({"authorization": {"readers": [{}, {"value": {}}]}}, "authorization.readers[1].value"),
        ({"annotations": []}, "annotations"),
        ({"annotations": {"a.b/c": []}}, "annotations.a.b/c"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_by_its_place(body, at):
    """An unreadable value is reported with its position in the body. (R4, R6)"""
    told = refusal(event_type_draft, body)

    assert told.startswith("JSON parse error: ")
    assert told.endswith(f" (at {at})")


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"category": "odd"}, "category"),
        ({"audience": "odd"}, "audience"),
        ({"schema": {"type": "odd"}}, "schema.type"),
        ({"enrichment_strategies": ["metadata_enrichment", "odd"]}, "enrichment_strategies[1]"),
    ],
)
def test_an_unknown_word_is_named_by_its_place(body, at):
    """A word that is not part of an enumeration is reported with the valid words, and with its position. (R4)"""
    told = refusal(event_type_draft, body)

    assert told.startswith("Illegal enum value: 'odd'. Possible values: [")
    assert told.endswith(f"] (at {at})")


@pytest.mark.parametrize("listed", [None, "x", [None], ["a", None], [[]]])
def test_the_event_types_of_a_subscription_are_a_list_of_texts(listed):
    """A null among the event types of a subscription, or in place of the list, is a bad request. (S15)"""
    assert "(at event_types" in refusal(subscription_draft, {"event_types": listed})


def test_a_null_key_field_stays_null():
    """A null among the key fields is neither dropped nor turned into a string. (R111)"""
    draft = event_type_draft(ObjectReader.from_value({"partition_key_fields": [None, "a", 5]}))

    assert draft.partition_key_fields == (None, "a", "5")


@pytest.mark.parametrize("body", [b'\xef\xbb\xbf{"a": 1}', b'\xef\xbb\xbf {"a": 1} and more'])
def test_a_byte_order_mark_may_stand_before_a_body(body):
    """A byte order mark before a body is skipped. (R1)"""
    assert object_body(Request(method="POST", path="/", body=body)).integer("a") == 1


@pytest.mark.parametrize("body", [b"", b"null", b" null\n"])
def test_a_body_of_nothing_is_missing(body):
    """An empty body and null are reported as missing. (R7)"""
    with pytest.raises(Malformed, match="Required request body is missing"):
        object_body(Request(method="POST", path="/", body=body))


def test_blanks_are_no_document():
    """A body of whitespace is not missing, but is not JSON. (R6)"""
    with pytest.raises(Malformed, match=r"^JSON parse error: "):
        object_body(Request(method="POST", path="/", body=b" \r\n\t"))


def test_only_one_byte_order_mark_is_passed_over():
    """The text after the mark has to be JSON. (R6)"""
    for text in (b"\xef\xbb\xbf\xef\xbb\xbf{}", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"):
        with pytest.raises(Malformed):
            json_document(text)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        (1.9, 1),
        (1e2, 100),
        ("7", 7),
        (" 7 ", 7),
        ("", None),
        ("null", None),
        (None, None),
        (-(2**31), -(2**31)),
    ],
)
def test_numbers_are_read(value, number):
    """A number loses its fraction, and a string of digits is read as a number. (R8)"""
    assert ObjectReader({"n": value}).integer("n", bits=32) == number


@pytest.mark.parametrize(
    "value", ["x", "1_000", "٣", "0x5", "1.5", "9" * 5000, True, [], {}, 2**31, "2147483648", 1e300]
)
def test_other_values_are_no_numbers(value):
    """A value that is not a number, or that has too many bits, is malformed. (R1, R6)"""
    with pytest.raises(Malformed):
        ObjectReader({"n": value}).integer("n", bits=32)


def test_an_endless_number_is_malformed():
    """A number that is read as infinite is not a number."""
    with pytest.raises(Malformed):
        ObjectReader(json_document(b'{"n": 1e999} and more')).integer("n")


@pytest.mark.parametrize("name", ["messages_per_minute", "message_size", "read_parallelism", "write_parallelism"])
def test_numbers_of_the_statistic_have_32_bits(name):
    """A number of the default statistic beyond 32 bits is answered with 400, and named. (R1)"""
    told = refusal(event_type_draft, {"default_statistic": {name: 2**31}})
    assert told == f"JSON parse error: {2**31} does not fit 32 bits (at default_statistic.{name})"


@pytest.mark.parametrize(
    ("value", "truth"),
    [
        (True, True),
        (False, False),
        ("TRUE", True),
        (" false ", False),
        (1, True),
        (0, False),
        (None, None),
        ("", None),
        ("null", None),
    ],
)
def test_truth_values_are_read(value, truth):
    """A truth value may be a word or a number, where 0 is false. (R1, R8)"""
    assert ObjectReader({"flag": value}).boolean("flag") is truth


@pytest.mark.parametrize(
    "number", ["5", "1.10", "1e2", "1E2", "-0.0", "1e400", "123456789012345678901234567890", "12345678901234567890.5"]
)
@pytest.mark.parametrize("after", [b"", b" and more"])
def test_a_number_in_place_of_a_text_keeps_its_spelling(number, after):
    """A number becomes a text with the same characters. (R8)"""
    body = ObjectReader(json_document(f'{{"text": {number}, "texts": {{"a": {number}}}}}'.encode() + after))

    assert body.text("text") == number
    assert body.text_mapping("texts") == {"a": number}
