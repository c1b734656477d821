"""Validation of a sink."""

import pytest

from nakadi.delivery.addresses import parse_address_rules
from nakadi.delivery.checks import check_sink
from nakadi.delivery.targets import TargetRules
from nakadi.model.outcomes import Violations
from nakadi.model.sink import SinkDraft, SinkFormat

RULES = parse_address_rules(())


TARGETS = TargetRules(("arn:aws:sqs:*:123456789012:orders*", "arn:aws:lambda:*", "arn:aws:sns:*", "arn:aws:events:*"))


def violations_by_path(schemes=("https",), **changes):
    draft = SinkDraft(**{"type": "http", "target": "https://shop.example.org/hook", **changes})
    try:
        check_sink(draft, schemes, RULES, TARGETS)
    except Violations as error:
        return {each.path: each.message for each in error.violations}
    return {}


def test_a_plain_sink_is_fine():
    assert violations_by_path() == {}
    assert violations_by_path(headers={"Authorization": "Bearer a b", "x-team": "é".encode().hex()}) == {}
    assert violations_by_path(secret="generated") == violations_by_path(secret="whsec_" + "A" * 40) == {}


@pytest.mark.parametrize(
    ("url", "part"),
    [
        (None, "null"),
        ("", "character"),
        ("shop.example.org", "absolute"),
        ("https:///hook", "absolute"),
        ("https://shop.example.org:99999/", "absolute"),
        ("https://shop.example.org/a b", "absolute"),
        ("https://shöp.example.org/", "absolute"),
        ("https://shop.example.org\\@10.0.0.1/", "absolute"),
        ("http://shop.example.org/", "https://"),
        ("ftp://shop.example.org/", "https://"),
        ("https://ann:secret@shop.example.org/", "password"),
        ("https://shop.example.org/#here", "fragment"),
        ("https://127.0.0.1/", "address"),
        ("https://[::ffff:10.0.0.1]/", "address"),
        ("https://169.254.169.254/latest/meta-data", "address"),
    ],
)
def test_urls(url, part):
    """The URL of a sink must be absolute and use https, and must have no password, no fragment and no internal address.
    (X20, X21)
    """
    assert part in violations_by_path(target=url)["url"]


def test_a_setting_allows_http():
    """(X20)"""
    assert violations_by_path(schemes=("https", "http"), target="http://shop.example.org/") == {}


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Transfer-Encoding", "CONNECTION", "te", "upgrade", "webhook-id", "Webhook-Anything"],
)
def test_headers_of_the_connection_and_of_the_broker_are_refused(name):
    """(X22)"""
    assert violations_by_path(headers={name: "a"}) == {f"headers.{name}": "is set by the broker"}


@pytest.mark.parametrize(
    "headers",
    [
        {"a b": "c"},
        {"": "c"},
        {"a": "b\r\nwebhook-id: c"},
        {"a": ""},
        {"a": None},
        {"a": "é"},
        {"a": "1", "A": "2"},
        {f"a{number}": "1" for number in range(21)},
        {"a": "b" * 9000},
    ],
)
def test_headers_are_valid_and_few(headers):
    """(X22)"""
    assert all(path.startswith("headers") for path in violations_by_path(headers=headers))
    assert violations_by_path(headers=headers)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"type": "pigeon"}, "type"),
        ({"type": None}, "type"),
        ({"secret": "mine"}, "secret"),
        ({"batch_limit": 0}, "batch_limit"),
        ({"batch_limit": 1001}, "batch_limit"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": 61}, "timeout_seconds"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": 101}, "max_in_flight"),
    ],
)
def test_other_fields(changes, path):
    """(X2)"""
    assert list(violations_by_path(**changes)) == [path]


@pytest.mark.parametrize(
    ("kind", "member", "target"),
    [
        ("lambda", "function", "arn:aws:lambda:eu-central-1:123456789012:function:ship"),
        ("sqs", "queue", "arn:aws:sqs:eu-central-1:123456789012:orders.fifo"),
        ("sqs", "queue", "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"),
        ("sns", "topic", "arn:aws:sns:eu-central-1:123456789012:orders"),
        ("eventbridge", "bus", "arn:aws:events:eu-central-1:123456789012:event-bus/orders"),
    ],
)
def test_a_target_in_aws_is_an_arn_without_a_secret_and_headers(kind, member, target):
    """(X38)"""
    assert violations_by_path(type=kind, target=target, format=SinkFormat.CLOUDEVENTS) == {}
    assert set(violations_by_path(type=kind, target=target, secret="generated", headers={"x": "y"})) == {
        "secret",
        "headers",
    }
    for wrong, part in (("orders", "ARN"), (None, "null"), ("", "character")):
        assert part in violations_by_path(type=kind, target=wrong)[member]


def test_a_target_that_the_settings_do_not_allow_is_refused():
    """(X38)"""
    queue = "arn:aws:sqs:eu-central-1:{}:orders".format
    assert violations_by_path(type="sqs", target=queue("123456789012")) == {}
    assert "NAKADI_SINK_TARGETS" in violations_by_path(type="sqs", target=queue("210987654321"))["queue"]
