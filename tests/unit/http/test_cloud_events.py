"""The content modes of requests with CloudEvents, and attributes in headers."""

import pytest

from nakadi.http.cloud_events import ContentMode, content_mode, decode_attributes
from nakadi.http.problem import UnsupportedMediaType
from nakadi.model.outcomes import Invalid

SENT = {"id": "1"}


@pytest.mark.parametrize(
    ("content_type", "attributes", "mode"),
    [
        ("application/json", {}, None),
        ("", {}, None),
        ("text/plain", {}, None),
        ("application/json", {"cluster": "a"}, None),
        ("application/json", SENT, ContentMode.BINARY),
        ("", SENT, ContentMode.BINARY),
        ("application/vnd.shop+json; charset=utf-8", SENT, ContentMode.BINARY),
        ("application/cloudevents+json", SENT, ContentMode.STRUCTURED),
        ("Application/CloudEvents+JSON; charset=UTF-8", {}, ContentMode.STRUCTURED),
        ("application/cloudevents-batch+json", {}, ContentMode.BATCHED),
    ],
)
def test_the_content_type_decides_before_the_headers(content_type, attributes, mode):
    """If neither the content type nor the headers indicate CloudEvents, a body is a list of events. (E1)"""
    assert content_mode(content_type, attributes) is mode


@pytest.mark.parametrize(
    ("content_type", "attributes"),
    [("application/cloudevents+avro", {}), ("application/cloudevents-batch+xml", {}), ("text/plain", SENT)],
)
def test_other_forms_are_not_supported(content_type, attributes):
    """Other formats of CloudEvents are refused, and so are data that are not JSON. (E9)"""
    with pytest.raises(UnsupportedMediaType):
        content_mode(content_type, attributes)


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain", "plain"), ("Euro%20%E2%82%AC", "Euro €"), ('"a \\"b\\""', 'a "b"'), ("100%25", "100%"), ('"', '"')],
)
def test_values_of_headers_are_decoded(value, text):
    """Percent-encoding and quotation are decoded once. (E1)"""
    assert decode_attributes({"subject": value}, "") == {"subject": text}


def test_the_content_type_is_that_of_the_data():
    """The content type is the attribute `datacontenttype`. (E1)"""
    assert decode_attributes({}, "application/json") == {"datacontenttype": "application/json"}


@pytest.mark.parametrize("value", ["%", "50%", "%G0", "%e4", "\xe4"])
def test_bad_escapes_are_invalid(value):
    """An incomplete escape is refused, and so are bytes that are not UTF-8. (E9)"""
    with pytest.raises(Invalid, match="The header `ce-subject`"):
        decode_attributes({"subject": value}, "")
