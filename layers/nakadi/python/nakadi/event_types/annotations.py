"""The rules for annotations and labels, on event types and subscriptions alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from nakadi.model.outcomes import MAX_ANNOTATIONS_OR_LABELS, Violation, size_limit_violations

MAX_ANNOTATION_KEY_PREFIX_CHARACTERS = 253
MAX_ANNOTATION_KEY_NAME_CHARACTERS = 63
MAX_ANNOTATION_CHARACTERS = 1000
MAX_LABEL_CHARACTERS = 63
# Keys are shortened to this length in messages. It is more than a key may have, so that readers still recognize a key
# that is too long.
MAX_ANNOTATION_KEY_CHARACTERS_SHOWN = 500

_HOST_NAME_PART_PATTERN = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_NAME_PATTERN = "[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_LABEL_VALUE_PATTERN = re.compile(_LABEL_NAME_PATTERN)

# Each pattern describes the whole key, so a wrong character before the slash violates three of them.
_ANNOTATION_KEY_RULES = tuple(
    (re.compile(pattern), message)
    for pattern, message in (
        (
            rf"({_HOST_NAME_PART_PATTERN}(\.{_HOST_NAME_PART_PATTERN})*/)?[^/]*",
            "Key name should be an optional lowercase domain name with path",
        ),
        (
            rf"([-.a-z0-9]{{0,{MAX_ANNOTATION_KEY_PREFIX_CHARACTERS}}}/)?[^/]*",
            f"Key prefix cannot be more than {MAX_ANNOTATION_KEY_PREFIX_CHARACTERS} characters.",
        ),
        (
            rf"([-.a-z0-9]+/)?[^/]{{0,{MAX_ANNOTATION_KEY_NAME_CHARACTERS}}}",
            f"Key name cannot be more than {MAX_ANNOTATION_KEY_NAME_CHARACTERS} characters.",
        ),
        (f"([^/]+/)?{_LABEL_NAME_PATTERN}", "Key name should start and end with a letter or a digit"),
    )
)


def annotation_violations(annotations: Mapping[str, str | None]) -> Iterator[Violation]:
    yield from size_limit_violations("annotations", annotations, MAX_ANNOTATIONS_OR_LABELS)
    for key, value in islice(annotations.items(), MAX_ANNOTATIONS_OR_LABELS):
        path = f"annotations[{key[:MAX_ANNOTATION_KEY_CHARACTERS_SHOWN]}]"
        yield from _annotation_key_violations(path, key[:MAX_ANNOTATION_KEY_CHARACTERS_SHOWN])
        yield from size_limit_violations(path, value, MAX_ANNOTATION_CHARACTERS)


def label_violations(labels: Mapping[str, str | None]) -> Iterator[Violation]:
    yield from size_limit_violations("labels", labels, MAX_ANNOTATIONS_OR_LABELS)
    for key, value in islice(labels.items(), MAX_ANNOTATIONS_OR_LABELS):
        path = f"labels[{key[:MAX_ANNOTATION_KEY_CHARACTERS_SHOWN]}]"
        yield from _annotation_key_violations(path, key[:MAX_ANNOTATION_KEY_CHARACTERS_SHOWN])
        yield from size_limit_violations(path, value, MAX_LABEL_CHARACTERS)
        if value and not _LABEL_VALUE_PATTERN.fullmatch(value):
            yield Violation(path, "Should contain only allowed symbols")


def _annotation_key_violations(path: str, key: str) -> Iterator[Violation]:
    if not key:
        yield Violation(path, "Key cannot be empty")
    for rule, message in _ANNOTATION_KEY_RULES:
        if not rule.fullmatch(key):
            yield Violation(path, message)
