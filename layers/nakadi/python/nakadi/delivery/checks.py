"""Checks the rules for a sink: for its URL, its headers and its secret."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from nakadi.delivery.addresses import AddressRules, is_address
from nakadi.delivery.signing import SECRET_BYTES, is_secret
from nakadi.delivery.targets import ARN_PATTERNS, TargetRules, canonical_target, parse_target
from nakadi.model.outcomes import Violation, Violations
from nakadi.model.sink import GENERATED_SECRET, SinkDraft, SinkFormat, SinkType, target_member
from nakadi.openapi.checks import NULL_REFUSED_MESSAGE, openapi_violations
from nakadi.schemas.conditions import BadCondition, parse_condition

MAX_HEADERS = 20
MAX_HEADER_CHARACTERS = 8000
"""How many characters all headers of a sink may have together: servers accept heads of about this size."""

HEADER_NAME_PATTERN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
# The value of a header: visible characters, with spaces and tabs between them.
HEADER_VALUE_PATTERN = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?", re.ASCII)

RESERVED_HEADERS = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade", "http2-settings", "expect"),
        *("host", "content-length", "content-type", "content-encoding", "accept-encoding", "user-agent", "cookie"),
    }
)
"""Headers that a sink may not name: those of a single connection, and those that the broker sets itself."""

RESERVED_HEADER_PREFIX = "webhook-"


def check_sink(draft: SinkDraft, schemes: Collection[str], rules: AddressRules, targets: TargetRules) -> None:
    """Raises `Violations`."""
    found = (*openapi_violations("SinkDraft", _body_of_draft(draft)), *_rule_violations(draft, schemes, rules, targets))
    if found:
        raise Violations(tuple(dict.fromkeys(found)))


def _body_of_draft(draft: SinkDraft) -> dict[str, Any]:
    return {
        "type": draft.type,
        target_member(draft.type): draft.target,
        "secret": draft.secret,
        "batch_limit": draft.batch_limit,
        "timeout_seconds": draft.timeout_seconds,
        "max_in_flight": draft.max_in_flight,
        "filter": draft.filter,
    }


def _rule_violations(
    draft: SinkDraft, schemes: Collection[str], rules: AddressRules, targets: TargetRules
) -> Iterator[Violation]:
    if draft.type not in (None, *SinkType):
        yield Violation("type", f"must be {' or '.join(SinkType)}")
    if draft.target is None:
        yield Violation(target_member(draft.type), NULL_REFUSED_MESSAGE)
    elif draft.target and draft.type in ARN_PATTERNS:
        yield from target_violations(draft, targets)
    elif draft.target and draft.type != SinkType.EVENT_TYPE:
        yield from url_violations(draft.target, schemes, rules)
    if draft.type in {*SinkType} - {SinkType.HTTP}:
        yield from unsigned_violations(draft)
    yield from header_violations(draft.headers)
    if draft.filter is not None:
        yield from filter_violations(draft.filter)
    if draft.secret and draft.secret != GENERATED_SECRET and not is_secret(draft.secret):
        yield Violation(
            "secret", f"must be generated, or whsec_ and {SECRET_BYTES[0]} to {SECRET_BYTES[-1]} bytes in Base64"
        )


def unsigned_violations(draft: SinkDraft) -> Iterator[Violation]:
    """The violations of a sink of a type other than HTTP: only HTTP sinks have headers and signatures, and an event
    type gets events unchanged.
    """
    if draft.headers:
        yield Violation("headers", "must not be there: only sinks of the type http have headers")
    if draft.secret:
        yield Violation("secret", "must not be there: only deliveries over HTTP are signed")
    if draft.type == SinkType.EVENT_TYPE and draft.format is not SinkFormat.NAKADI:
        yield Violation("format", "must be nakadi for an event type")


TARGET_MESSAGES: Mapping[SinkType, str] = {
    SinkType.LAMBDA: "must be the ARN of a Lambda function, perhaps with a version or an alias",
    SinkType.SQS: "must be the ARN or the URL of an SQS queue",
    SinkType.SNS: "must be the ARN of an SNS topic",
    SinkType.EVENTBRIDGE: "must be the ARN of an event bus",
}


def target_violations(draft: SinkDraft, targets: TargetRules) -> Iterator[Violation]:
    """The violations of a sink's target in AWS. The broker calls a target with its own permissions, so only targets
    that the settings allow are valid.
    """
    kind = SinkType(draft.type or "")
    arn = canonical_target(kind, draft.target or "")
    if parse_target(kind, arn) is None:
        yield Violation(target_member(kind), TARGET_MESSAGES[kind])
    elif not targets.allows(arn):
        yield Violation(target_member(kind), "must be a target that NAKADI_SINK_TARGETS of this broker allows")


def url_violations(url: str, schemes: Collection[str], rules: AddressRules) -> Iterator[Violation]:
    parts = _split(url)
    if parts is None or not parts.hostname or not url.isascii() or any(each <= " " or each == "\\" for each in url):
        yield Violation("url", "must be an absolute URL")
        return
    if parts.scheme not in schemes:
        yield Violation("url", f"must begin with {' or '.join(f'{each}://' for each in schemes)}")
    if parts.username is not None or parts.password is not None:
        yield Violation("url", "must not have a user or a password; use headers")
    if parts.fragment:
        yield Violation("url", "must not have a fragment")
    # Host names are resolved, and their addresses checked, for each connection.
    if is_address(parts.hostname) and not rules.allows(parts.hostname):
        yield Violation("url", "must not lead to an address that this broker does not deliver to")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return None
    return parts


def filter_violations(text: str) -> Iterator[Violation]:
    try:
        parse_condition(text)
    except BadCondition as error:
        yield Violation("filter", str(error))


def header_violations(headers: Mapping[str, str | None]) -> Iterator[Violation]:
    if len(headers) > MAX_HEADERS:
        yield Violation("headers", f"size must be between 0 and {MAX_HEADERS}")
    if sum(len(name) + len(value or "") for name, value in headers.items()) > MAX_HEADER_CHARACTERS:
        yield Violation("headers", f"must have {MAX_HEADER_CHARACTERS} characters at most")
    if len({name.lower() for name in headers}) < len(headers):
        yield Violation("headers", "must not have a name twice")
    for name, value in headers.items():
        if not HEADER_NAME_PATTERN.fullmatch(name):
            yield Violation("headers", "must have names of HTTP headers")
        elif name.lower() in RESERVED_HEADERS or name.lower().startswith(RESERVED_HEADER_PREFIX):
            yield Violation(f"headers.{name}", "is set by the broker")
        elif value is None or not HEADER_VALUE_PATTERN.fullmatch(value):
            yield Violation(f"headers.{name}", "must be a value of an HTTP header")
