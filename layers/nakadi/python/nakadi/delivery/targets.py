"""Where sinks in AWS are: ARNs, and which of them the settings allow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from nakadi.delivery.answers import Answer, Verdict
from nakadi.model.sink import Sink, SinkType

FIFO_SUFFIX = ".fifo"

# A region becomes part of a host name, so only a valid region is accepted.
_ARN_BEGINNING = (
    r"arn:aws[a-z-]{{0,20}}:{service}:(?P<region>[a-z]{{2,8}}-[a-z-]{{2,20}}-\d{{1,2}}):(?P<account>\d{{12}}):"
)

ARN_PATTERNS: Mapping[SinkType, re.Pattern[str]] = {
    kind: re.compile(_ARN_BEGINNING.format(service=service) + name, re.ASCII)
    for kind, service, name in (
        (SinkType.LAMBDA, "lambda", r"function:(?P<name>[\w-]{1,64})(:[\w$-]{1,128})?"),
        (SinkType.SQS, "sqs", r"(?P<name>[\w-]{1,80}(\.fifo)?)"),
        (SinkType.SNS, "sns", r"(?P<name>[\w-]{1,256}(\.fifo)?)"),
        (SinkType.EVENTBRIDGE, "events", r"event-bus/(?P<name>[\w./-]{1,256})"),
    )
}
"""The pattern of a target's ARN for each type; the other types have no ARNs."""

QUEUE_URL_PATTERN = re.compile(
    r"https://sqs\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?P<china>\.cn)?/(?P<account>\d{12})/(?P<name>[\w.-]+)",
    re.ASCII,
)


class Target(Struct, frozen=True):
    """A function, queue, topic or bus."""

    arn: str
    region: str
    account: str
    name: str

    @property
    def is_fifo(self) -> bool:
        return self.name.endswith(FIFO_SUFFIX)


def canonical_target(sink_type: str | None, text: str) -> str:
    """The ARN of a queue whose URL this is; otherwise the same text."""
    found = QUEUE_URL_PATTERN.fullmatch(text) if sink_type == SinkType.SQS else None
    if found is None:
        return text
    partition = "aws-cn" if found["china"] else "aws"
    return f"arn:{partition}:sqs:{found['region']}:{found['account']}:{found['name']}"


def parse_target(sink_type: SinkType, arn: str) -> Target | None:
    """The target that an ARN names; None if it is not an ARN of this type."""
    found = ARN_PATTERNS[sink_type].fullmatch(arn)
    return None if found is None else Target(arn, found["region"], found["account"], found["name"])


class TargetRules(Struct, frozen=True):
    """The patterns of ARNs that the broker may deliver to, with `*` for any text. Without patterns, the broker may
    deliver to no target in AWS.
    """

    patterns: tuple[str, ...] = ()

    def allows(self, arn: str) -> bool:
        return any(fnmatchcase(arn, each) for each in self.patterns)


def find_target(sink: Sink, rules: TargetRules) -> Target | None:
    """The target of a sink's events; None if the settings no longer allow it."""
    return parse_target(sink.type, sink.target) if rules.allows(sink.target) else None


def refusal_of_target(sink: Sink) -> Answer:
    """The answer to use without an attempt, if the settings do not allow the target. The events wait until they do."""
    return Answer(None, f"Deliveries may not go to {sink.target}, see NAKADI_SINK_TARGETS", verdict=Verdict.LATER)
