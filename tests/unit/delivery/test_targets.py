"""ARNs of targets, and the targets that the settings allow."""

import pytest

from nakadi.delivery.answers import Verdict
from nakadi.delivery.targets import (
    Target,
    TargetRules,
    canonical_target,
    find_target,
    parse_target,
    refusal_of_target,
)
from nakadi.model.sink import SinkType
from tests.support.sinks import a_sink

QUEUE = "arn:aws:sqs:eu-central-1:123456789012:orders.fifo"


@pytest.mark.parametrize(
    ("kind", "arn", "name"),
    [
        ("lambda", "arn:aws:lambda:eu-central-1:123456789012:function:ship", "ship"),
        ("lambda", "arn:aws:lambda:eu-central-1:123456789012:function:ship:live", "ship"),
        ("lambda", "arn:aws:lambda:eu-central-1:123456789012:function:ship:$LATEST", "ship"),
        ("sqs", QUEUE, "orders.fifo"),
        ("sqs", "arn:aws-us-gov:sqs:us-gov-west-1:123456789012:orders", "orders"),
        ("sns", "arn:aws:sns:eu-central-1:123456789012:orders", "orders"),
        ("eventbridge", "arn:aws:events:eu-central-1:123456789012:event-bus/default", "default"),
    ],
)
def test_an_arn_says_where_a_target_is(kind, arn, name):
    """(X38)"""
    target = parse_target(SinkType(kind), arn)
    assert (target.arn, target.account, target.name) == (arn, "123456789012", name)
    assert target.region == arn.split(":")[3]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sqs", ""),
        ("sqs", "orders"),
        ("sqs", "arn:aws:sns:eu-central-1:123456789012:orders"),
        ("sqs", "arn:aws:sqs:eu-central-1:123456789012:orders.fifo.fifo"),
        ("sqs", f"{QUEUE}\n"),
        ("sqs", "arn:aws:sqs:evil.example.org/:123456789012:orders"),
        ("sqs", "arn:aws:sqs:eu-central-1.evil-1:123456789012:orders"),
        ("sqs", "arn:aws:sqs:eu-central-1:123456789012:../orders"),
        ("sqs", "arn:aws:sqs:eu-central-1:123456789012:" + "o" * 81),
        ("lambda", "arn:aws:lambda:eu-central-1:123456789012:function:ship:live:1"),
        ("lambda", "arn:aws:lambda:eu-central-1:123456789012:layer:ship"),
        ("eventbridge", "arn:aws:events:eu-central-1:123456789012:rule/default"),
        ("eventbridge", "default"),
    ],
)
def test_anything_else_is_no_target(kind, text):
    """A text that is not an ARN of the given kind is refused, so no target can lead to another host. (X38)"""
    assert parse_target(SinkType(kind), text) is None


def test_a_queue_may_be_named_by_its_url():
    """(X38)"""
    assert canonical_target("sqs", "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo") == QUEUE
    chinese = canonical_target("sqs", "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/orders")
    assert chinese == "arn:aws-cn:sqs:cn-north-1:123456789012:orders"
    assert canonical_target("sqs", QUEUE) == QUEUE
    for other in ("https://sqs.eu-central-1.example.org/123456789012/orders", "http://sqs.eu-central-1.amazonaws.com/"):
        assert canonical_target("sqs", other) == other
    assert canonical_target("http", "https://sqs.eu-central-1.amazonaws.com/123456789012/orders").startswith("https:")


def test_settings_allow_targets_by_pattern():
    """(X38)"""
    assert not TargetRules().allows(QUEUE)
    assert TargetRules((QUEUE,)).allows(QUEUE)
    rules = TargetRules(("arn:aws:lambda:*", "arn:aws:sqs:*:123456789012:orders*"))
    assert rules.allows(QUEUE)
    assert not rules.allows(QUEUE.replace("123456789012", "210987654321"))
    assert not rules.allows(QUEUE.replace("orders", "payments"))


def test_what_the_settings_no_longer_allow_waits():
    """(X15, X38)"""
    sink = a_sink(SinkType.SQS, QUEUE)
    assert find_target(sink, TargetRules(("*",))) == Target(QUEUE, "eu-central-1", "123456789012", "orders.fifo")
    assert find_target(sink, TargetRules()) is None
    answer = refusal_of_target(sink)
    assert answer.verdict is Verdict.LATER
    assert "NAKADI_SINK_TARGETS" in answer.text
