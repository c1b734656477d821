"""Annotations and labels: what their keys and values may look like, on event types and subscriptions alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from nakadi.model.outcomes import Violation
from nakadi.model.sizes import MOST_ENTRIES, size_violations

MAX_PREFIX = 253
MAX_NAME = 63
MAX_ANNOTATION = 1000
MAX_LABEL = 63
# More than the longest key has: enough to see that a key is too long, and to tell which one.
SHOWN = 500

_LABEL_OF_HOST = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_ENDS = "[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_NAME = re.compile(_ENDS)

# Each of these is about the whole key, so that one odd character before the slash breaks three of them.
_KEY_RULES = tuple(
    (re.compile(pattern), message)
    for pattern, message in (
        (
            rf"({_LABEL_OF_HOST}(\.{_LABEL_OF_HOST})*/)?[^/]*",
            "Key name should be an optional lowercase domain name with path",
        ),
        (
            rf"([-.a-z0-9]{{0,{MAX_PREFIX}}}/)?[^/]*",
            f"Key prefix cannot be more than {MAX_PREFIX} characters.",
        ),
        (rf"([-.a-z0-9]+/)?[^/]{{0,{MAX_NAME}}}", f"Key name cannot be more than {MAX_NAME} characters."),
        (f"([^/]+/)?{_ENDS}", "Key name should start and end with a letter or a digit"),
    )
)


def annotation_violations(annotations: Mapping[str, str | None]) -> Iterator[Violation]:
    yield from size_violations("annotations", annotations, MOST_ENTRIES)
    for key, value in islice(annotations.items(), MOST_ENTRIES):
        path = f"annotations[{key[:SHOWN]}]"
        yield from _key_violations(path, key[:SHOWN])
        yield from size_violations(path, value, MAX_ANNOTATION)


def label_violations(labels: Mapping[str, str | None]) -> Iterator[Violation]:
    yield from size_violations("labels", labels, MOST_ENTRIES)
    for key, value in islice(labels.items(), MOST_ENTRIES):
        path = f"labels[{key[:SHOWN]}]"
        yield from _key_violations(path, key[:SHOWN])
        yield from size_violations(path, value, MAX_LABEL)
        if value and not _NAME.fullmatch(value):
            yield Violation(path, "Should contain only allowed symbols")


def _key_violations(path: str, key: str) -> Iterator[Violation]:
    if not key:
        yield Violation(path, "Key cannot be empty")
    for rule, message in _KEY_RULES:
        if not rule.fullmatch(key):
            yield Violation(path, message)
