"""Outcomes: answers that are not the desired one.

    Outcome
    ├── Malformed              the request cannot be understood
    │   └── MalformedFields    ... because of these violations
    ├── NotAuthenticated       the sender is unknown
    ├── NotPermitted           the sender may not do this
    ├── NotFound               the named resource does not exist
    ├── Conflict               the resource exists already, or changed meanwhile
    ├── Unusable               a cursor that points at nothing readable
    ├── TooLarge               beyond a limit of the broker
    ├── Invalid                understood, but against a rule
    │   ├── Violations         ... one line per field
    │   └── Incompatible       ... a schema that may not follow the one before it
    ├── SwitchedOff            an administrator turned this off
    └── TryLater               not now, perhaps soon
        └── StillRunning       ... the work continues, longer than its caller may wait

An outcome is an answer to a client, and its `detail` is written for that client. A *fault* is not: it says that a part
of the broker failed. The whole package keeps faults apart from outcomes.

    Fault
    └── Unavailable            a store or a log did not answer; nothing is known to be lost
        └── UnreadableEvents   ... its archive is damaged there, until an operator repairs it
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

from msgspec import Struct

from nakadi.model.reads import AffectedReader


class Outcome(Exception):
    """Raised when the correct answer to a request is not a success."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Malformed(Outcome):
    """Raised when a request cannot be read: bad JSON, a wrong type, an unknown word."""


class NotAuthenticated(Outcome):
    """Raised when a token is missing, or not trusted."""


class NotPermitted(Outcome):
    """Raised when the subject is known, but may not do this."""


class NotFound(Outcome):
    """Raised when the resource that the request names does not exist."""


class Conflict(Outcome):
    """Raised when the resource exists already or is in use, or another process has changed it."""


class UnusableCursor(Outcome):
    """Raised when a stream cannot start at the given cursor."""


class TooLarge(Outcome):
    """Raised when a request, or a part of it, exceeds a limit of the broker."""


class Invalid(Outcome):
    """Raised when a request is understood, but breaks a rule."""


class Violation(Struct, frozen=True, order=True):
    """A field of a request that breaks a rule; `path` is in the spelling of clients,
    `authorization.readers[0].value`.
    """

    path: str
    message: str


class Violations(Invalid):
    """Raised when fields of a request break rules that can be listed one by one."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("".join(f'Field "{each.path}" {each.message}\n' for each in violations))
        self.violations = violations


class IncompatibilityReason(Struct, frozen=True):
    """Why a schema change is refused: the rule's name, the place in the schema, and the rule in plain words."""

    rule: str
    path: str
    explanation: str


class IncompatibleSchema(Invalid):
    """Raised for an incompatible schema change. Clients compare `detail`; people read `reasons`. `readers` are the
    subscriptions that would miss members.
    """

    def __init__(
        self, detail: str, reasons: tuple[IncompatibilityReason, ...], readers: tuple[AffectedReader, ...] = ()
    ) -> None:
        super().__init__(detail)
        self.reasons = reasons
        self.readers = readers


class MalformedFields(Malformed):
    """Raised by the few operations that answer violations as a bad request with a list."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("")
        self.violations = tuple(sorted(violations))


class FeatureSwitchedOff(Outcome):
    """Raised when an administrator has switched this operation off."""


class TryLater(Outcome):
    """Raised when the operation is valid, but impossible at the moment."""


class StillRunning(TryLater):
    """Raised when the requested work is in progress, but an answer is due before its end. A repeated request returns
    the result.
    """


class Fault(Exception):
    """Raised when a part of the broker failed."""


class Unavailable(Fault):
    """Raised when a store, a log or another service did not answer in time or refused to work.

    Its text is for operators: it may name files, tables and statements. Clients read `public`, or a sentence without
    details. `retry_after_seconds` is how long they should wait before they try again.
    """

    def __init__(self, cause: str, *, public: str = "", retry_after_seconds: int = 1) -> None:
        super().__init__(cause)
        self.public = public
        self.retry_after_seconds = retry_after_seconds


class UnreadableEvents(Unavailable):
    """Raised when events are in a part of the archive that is damaged or missing, or when a log that still does not
    answer is to be reported. They can be read once an operator has repaired it. `public` is the sentence for damage,
    unless there is another.
    """

    def __init__(
        self, cause: str, *, event_type: str, partition: int, first_offset: int, last_offset: int, public: str = ""
    ) -> None:
        super().__init__(
            cause,
            public=public
            or (
                f"Offsets {first_offset} to {last_offset} of partition {partition} of {event_type} cannot be read:"
                " their part of the archive is damaged or missing. The section NakadiArchiveIsDamaged of"
                " docs/operations.md says how to repair it."
            ),
            retry_after_seconds=5,
        )
        self.event_type = event_type
        self.partition = partition
        self.first_offset = first_offset
        self.last_offset = last_offset


class BadSetting(Exception):
    """Raised at the start of a program for an unusable setting, URL or argument; the message names it, in a sentence
    for the operator.
    """


# The limit for a name, a path to a field, or an offset.
MAX_TEXT_CHARACTERS = 1000
# The limit for the number of annotations, labels or other fields, which are read with every event or returned with
# every event type.
MAX_ANNOTATIONS_OR_LABELS = 100
# The limit for the names of each kind in the blacklist.
MAX_BLACKLIST_NAMES_PER_KIND = 10_000


def size_limit_violations(path: str, value: Sized | None, most: int = MAX_TEXT_CHARACTERS) -> Iterator[Violation]:
    """The violations of a text or list that is too long; a missing one has none."""
    if value is not None and len(value) > most:
        yield Violation(path, f"size must be between 0 and {most}")
