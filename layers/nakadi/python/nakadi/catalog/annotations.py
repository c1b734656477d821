"""Annotations and labels: what their keys and values may look like, on event types and subscriptions alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nakadi.model.outcomes import Violation

MAX_PREFIX = 253
MAX_NAME = 63
MAX_ANNOTATION = 1000
MAX_LABEL = 63

_LABEL_OF_HOST = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WITH_PREFIX = re.compile(rf"({_LABEL_OF_HOST}(\.{_LABEL_OF_HOST})*/)?[^/]*")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")


def annotation_violations(annotations: Mapping[str, str | None]) -> Iterator[Violation]:
    for key, value in annotations.items():
        yield from _key_violations(f"annotations[{key}]", key)
        yield from _size_violations(f"annotations[{key}]", value, MAX_ANNOTATION)


def label_violations(labels: Mapping[str, str | None]) -> Iterator[Violation]:
    for key, value in labels.items():
        yield from _key_violations(f"labels[{key}]", key)
        yield from _size_violations(f"labels[{key}]", value, MAX_LABEL)
        if value and not _NAME.fullmatch(value):
            yield Violation(f"labels[{key}]", "Should contain only allowed symbols")


def _key_violations(path: str, key: str) -> Iterator[Violation]:
    prefix, _, name = key.rpartition("/")
    if not key:
        yield Violation(path, "Key cannot be empty")
    if not _WITH_PREFIX.fullmatch(key):
        yield Violation(path, "Key name should be an optional lowercase domain name with path")
    if len(prefix) > MAX_PREFIX:
        yield Violation(path, f"Key prefix cannot be more than {MAX_PREFIX} characters.")
    if len(name) > MAX_NAME:
        yield Violation(path, f"Key name cannot be more than {MAX_NAME} characters.")
    if not _NAME.fullmatch(name):
        yield Violation(path, "Key name should start and end with a letter or a digit")


def _size_violations(path: str, value: str | None, most: int) -> Iterator[Violation]:
    if value is not None and len(value) > most:
        yield Violation(path, f"size must be between 0 and {most}")
