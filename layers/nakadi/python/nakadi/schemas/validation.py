"""Validators: schemas made ready to judge events, and kept for the next event."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode, EventType
from nakadi.model.outcomes import Invalid
from nakadi.model.schema import Version
from nakadi.schemas.bounds import MOST_STEPS, Steps
from nakadi.schemas.document import Document
from nakadi.schemas.explanation import LONG, SHORT, explained
from nakadi.schemas.generation import Accepts, generate
from nakadi.schemas.limits import check_tree
from nakadi.schemas.loading import check_loadable, check_references
from nakadi.schemas.patterns import BadPattern, Patterns

# What metadata and the envelope of data events add to a schema, with room to spare.
_ADDED_LEVELS = 5
_ADDED_VALUES = 100


class Validator:
    """A schema that can judge events, from any number of threads."""

    __slots__ = ("_accepts", "_document", "_patterns")

    def __init__(self, document: Document, accepts: Accepts, patterns: Patterns) -> None:
        self._document = document
        self._accepts = accepts
        self._patterns = patterns

    def accepts(self, event: Any, steps: Steps | None = None) -> bool:
        """Whether the event is valid; one that is too deep is not. Raises `Exhausted` if it takes too many steps."""
        try:
            return self._accepts(event, [MOST_STEPS] if steps is None else steps)
        except RecursionError:
            return False

    def explain(self, event: Any, before_long_work: Callable[[], None] = lambda: None) -> str:
        """What is wrong with an event that is not accepted."""
        for most_steps in (SHORT, LONG):
            if most_steps == LONG:
                before_long_work()
            explanation = explained(self._document, self._patterns, event, most_steps)
            if explanation.is_finished:
                break
        return explanation.text


def compile_validator(effective: Mapping[str, Any]) -> Validator:
    """Make a schema ready, or raise `Invalid` with the reason why it cannot be."""
    check_tree(effective, added_levels=_ADDED_LEVELS, added_values=_ADDED_VALUES)
    document = Document.of(effective)
    check_loadable(document)
    check_references(document)
    try:
        accepts, constants = generate(document)
    except BadPattern as error:
        raise Invalid(f"invalid regex pattern in the schema: {error}") from error
    return Validator(document, accepts, constants.patterns)


Key = tuple[str, Version, CompatibilityMode, CleanupPolicy, Category]


class Validators:
    """The validators in use, each made once, however many ask for it at the same time.

    When there are too many, those that were not asked for longest are forgotten.
    """

    def __init__(self, most: int = 500) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def of(self, event_type: EventType, effective: Callable[[], Mapping[str, Any]]) -> Validator:
        """The validator of an event type as it stands; `effective` is asked for the schema if there is none yet."""
        return self._entry(_key(event_type)).validator(effective)

    def _entry(self, key: Key) -> _Entry:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                entry = self._entries[key] = _Entry()
            else:
                self.hits += 1
                self._entries.move_to_end(key)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
            return entry


class _Entry:
    """A validator, or the promise of one. If making it fails, the next to ask tries again."""

    __slots__ = ("_lock", "_made")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: Validator | None = None

    def validator(self, effective: Callable[[], Mapping[str, Any]]) -> Validator:
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = compile_validator(effective())
        return self._made


def _key(event_type: EventType) -> Key:
    return (
        event_type.id,
        event_type.schema.version,
        event_type.compatibility_mode,
        event_type.cleanup_policy,
        event_type.category,
    )
