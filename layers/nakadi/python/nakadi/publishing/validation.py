"""Reads the body of a request, and checks that its events follow the schema of their event type and may be written for
their owners.

Bodies are read as strictly as the contract asks, and nearly as fast as a lenient parser would. Nearly all batches are
parsed at once. Only a body with a fault, or with misplaced commas, is scanned symbol by symbol; only a faulty event is
read by the strict parser, which can name the fault and its place.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from msgspec import UNSET

from nakadi.auth.permissions import Permissions, permission_denied_error
from nakadi.common.work import check_may_block
from nakadi.model.authorization import Attribute, Authorization, Operation, Resource, ResourceType, Subject
from nakadi.model.event_type import Category, EventType, OwnerSelector, OwnerSelectorType
from nakadi.model.outcomes import Malformed, TooLarge
from nakadi.publishing.batch import (
    ARRAY_DECODER,
    DEFAULT_LIMITS,
    EID_PATH,
    MAX_BATCH_PIECE_BYTES,
    MAX_EVENT_MEMORY_BYTES,
    PARSE_ERRORS,
    Batch,
    BatchLimits,
    BatchRejected,
    Event,
    LongBatch,
    NotStrictJson,
    PublishingStep,
    WorkBudget,
    estimate_event_memory,
    event_too_large_message,
    json_array_of,
    parse_piece,
    row_of_event,
    too_many_values_error,
)
from nakadi.publishing.memory import SHORT_BODY_BYTES, is_parsed_at_once
from nakadi.schemas import strict_json
from nakadi.schemas.formats import timestamp_problem
from nakadi.schemas.strict_json import OBJECT_MEMORY_BYTES, JsonText
from nakadi.schemas.validation import Validator
from nakadi.schemas.values import StepsExhausted, java_text, path_segments

log = logging.getLogger(__name__)

EnterLongWork = Callable[[], AbstractContextManager[None]]
"""The context for work that may take a second."""

# Parsing a longer body takes a while, in which no other thread can compute, so it waits for a turn.
LONG_BODY_BYTES = 1_000_000

# If objects are smaller than this on average, events are found one by one, because each separate text takes 72 bytes
# more.
_MIN_AVERAGE_OBJECT_BYTES = 24
# The number of objects among which finding the events takes about a second, if the fast way is not possible.
_MAX_OBJECTS = 1_000_000
_MAX_BRACES = 2 * MAX_EVENT_MEMORY_BYTES // OBJECT_MEMORY_BYTES
# The largest event whose fault is explained. Larger events would hardly be stored, and the strict parser takes a second
# for this size.
_MAX_EXPLAINED_BYTES = 1_000_000

_BLANK_BYTES = b" \t\r\n"
_OPENING_BRACE = ord("{")
_BLANKS_AND_COMMAS_PATTERN = re.compile(rb"[ \t\r\n,]*")

# The next brace outside of strings; objects without nested objects are skipped. A backslash always hides the next
# character. The alternative that fails at its first byte comes last: when the last try of a possessive repetition
# fails, Python before 3.11.5 continues from where it failed, and not from where it began.
_NOT_BRACES_PATTERN = rb'\\.|"(?:[^"\\]|\\.)*+"|[^{}"\\]++'
_NEXT_BRACE_PATTERN = re.compile(rb"(?:\{(?:%b)*+\}|%b)*+[{}]" % (_NOT_BRACES_PATTERN, _NOT_BRACES_PATTERN), re.DOTALL)
# The bytes that begin a UTF-8 character, and those that begin a character of four bytes.
_CHARACTER_STARTS = bytes({*range(256)} - {*range(0x80, 0xC0)})
_UP_TO_THREE_BYTES = bytes(range(0xF0))


def read_batch(
    body: bytes,
    limits: BatchLimits = DEFAULT_LIMITS,
    enter_long_work: EnterLongWork = nullcontext,
    *,
    at_once: bool | None = None,
) -> Batch:
    """The events in a body; raises `Malformed` or `TooLarge`.

    Work that may take a second is done in a context that `enter_long_work` gives. `at_once` is whether the body is
    parsed at once, if that is known.
    """
    at_once = is_parsed_at_once(body) if at_once is None else at_once
    if len(body) > LONG_BODY_BYTES:
        with enter_long_work():
            return _read_long_body(body, limits, nullcontext, at_once)
    if len(body) > SHORT_BODY_BYTES:
        return _read_long_body(body, limits, enter_long_work, at_once)
    try:
        piece = parse_piece(body)
    except PARSE_ERRORS:
        return _read_strictly(body, limits)
    if len(piece.events) > limits.max_events:
        limits.check_event_count(len(piece.events))
    return piece


def _read_long_body(body: bytes, limits: BatchLimits, enter_long_work: EnterLongWork, at_once: bool) -> Batch:
    try:
        return _read_fast(body, limits, at_once)
    except PARSE_ERRORS:
        with enter_long_work():
            return _read_strictly(body, limits)


def _read_strictly(body: bytes, limits: BatchLimits) -> Batch:
    check_may_block()
    texts = list(_split_strictly(body, limits))
    try:
        return _parse_all(LongBatch(texts, limits))
    except PARSE_ERRORS as error:
        raise _malformed_body(str(error)) from error


def _read_fast(body: bytes, limits: BatchLimits, at_once: bool) -> Batch:
    """The events of a body, without scanning; raises one of `PARSE_ERRORS` if the body needs scanning."""
    if at_once:
        piece = parse_piece(body)
        limits.check_event_count(len(piece.events))
        return piece
    return _parse_all(cut_long_body(body, limits))


def cut_long_body(body: bytes, limits: BatchLimits) -> LongBatch:
    """The texts of the events of a long body; raises `TooLarge`, or one of `PARSE_ERRORS` if a scan has to find the
    events.
    """
    if body.count(b"{") > max(limits.max_events, len(body) // _MIN_AVERAGE_OBJECT_BYTES):
        # If these were all events, creating their texts at once would take several times the memory of the body.
        raise NotStrictJson
    raws = ARRAY_DECODER.decode(body)
    limits.check_event_count(len(raws))
    texts = [memoryview(raw) for raw in raws]
    if not all(text[0] == _OPENING_BRACE for text in texts):
        raise NotStrictJson
    return LongBatch(texts, limits)


def _parse_all(batch: LongBatch) -> Batch:
    """The batch, if all its events are strict JSON; otherwise raises one of `PARSE_ERRORS`."""
    if batch.is_one_piece:
        return parse_piece(json_array_of(batch.received))
    for array in batch.piece_texts():
        parse_piece(array)
    return batch


def _split_strictly(body: bytes, limits: BatchLimits) -> Iterator[JsonText]:
    """The texts of the events, with any number of commas between them; raises if one of them is faulty."""
    _check_utf8(body)
    first, last = _bounds_of_array(body)
    view = memoryview(body)
    at = _skip_blanks_and_commas(body, first + 1)
    number = objects = 0
    while at < last:
        limits.check_event_count(number + 1)
        end = _end_of_event(body, at, last, number, limits)
        yield view[at:end]
        number, objects = number + 1, objects + body.count(b"{", at, end)
        if objects > _MAX_OBJECTS:
            raise TooLarge(f"The events of the batch have more than {_MAX_OBJECTS} objects within them")
        at = _skip_blanks_and_commas(body, end)


def _check_utf8(body: bytes) -> None:
    """Raise unless the body is UTF-8. It is checked a piece at a time, because a decoded body may take four times the
    memory.
    """
    if body.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(body), MAX_BATCH_PIECE_BYTES):
        waiting = len(decoder.getstate()[0])
        try:
            decoder.decode(body[at : at + MAX_BATCH_PIECE_BYTES], final=at + MAX_BATCH_PIECE_BYTES >= len(body))
        except UnicodeDecodeError as error:
            raise _malformed_body(f"Not in UTF-8 at position {at - waiting + error.start}") from error


def _bounds_of_array(body: bytes) -> tuple[int, int]:
    first = len(body) - len(body.lstrip(_BLANK_BYTES))
    last = len(body.rstrip(_BLANK_BYTES)) - 1
    if first > last or body[first : first + 1] != b"[":
        raise _malformed_body(f"Array of events should start with [ at position {_utf16_position(body, first)}")
    if first == last or body[last : last + 1] != b"]":
        raise _malformed_body(f"Array of events should end with ] at position {_utf16_position(body, last)}")
    return first, last


def _utf16_position(body: bytes, at: int) -> int:
    """How many UTF-16 units precede this byte, which begins a character: two for each character of four bytes."""
    before = body[:at]
    return at - len(before.translate(None, _CHARACTER_STARTS)) + len(before.translate(None, _UP_TO_THREE_BYTES))


def _skip_blanks_and_commas(body: bytes, at: int) -> int:
    """Skip whitespace and any number of commas, because some producers leave out commas, and others send too many."""
    found = _BLANKS_AND_COMMAS_PATTERN.match(body, at)
    assert found is not None
    return found.end()


def _end_of_event(body: bytes, at: int, last: int, number: int, limits: BatchLimits) -> int:
    """The position after the event that begins here, in a list that is closed at `last`."""
    if body[at] != _OPENING_BRACE:
        raise _malformed_body(f"Illegal character at position {_utf16_position(body, at)}")
    end = _position_after_closing_brace(body, at, last, number)
    if end is None:
        # The event is not closed, so the closing bracket of the list is where the strict parser finds the fault.
        return at + _strict_event_length(body[at : last + 1][:_MAX_EXPLAINED_BYTES])
    event = body[at:end]
    estimate_event_memory(number, event, limits)
    return end if _is_strict_event(event) else at + _strict_event_length(event[:_MAX_EXPLAINED_BYTES])


def _position_after_closing_brace(body: bytes, at: int, last: int, number: int) -> int | None:
    """The position after the brace that closes the one here, if it comes before `last` and the nesting is not too
    deep.
    """
    depth, at = 1, at + 1
    for _ in range(_MAX_BRACES):
        brace = _NEXT_BRACE_PATTERN.match(body, at, last)
        if brace is None or depth > strict_json.MAX_JSON_DEPTH:
            return None
        at = brace.end()
        depth += 1 if body[at - 1 : at] == b"{" else -1
        if not depth:
            return at
    raise too_many_values_error(number)


def _is_strict_event(text: bytes) -> bool:
    try:
        parse_piece(b"[%b]" % text)
    except PARSE_ERRORS:
        return False
    return True


def _strict_event_length(event: bytes) -> int:
    """The number of bytes that the strict parser reads as an event; raises `Malformed` with the fault if there is no
    valid one.
    """
    text = event.decode(errors="ignore")  # the text may end in the middle of a character
    try:
        end = strict_json.parse_leading_value(text)[1]
    except strict_json.StrictJsonError as error:
        raise _malformed_body(str(error)) from error
    return len(text[:end].encode())


def _malformed_body(reason: str) -> Malformed:
    return Malformed(f"Error occurred when parsing event(s). {reason}")


VALIDATION_TOO_LONG_MESSAGE = (
    "Validating the events of this batch takes more than {} steps: its schema holds their values against too much. "
    "Publish fewer or smaller events at once, or simplify the schema"
)


def validate_events(
    event_type: EventType,
    batch: Batch,
    validator: Validator,
    budget: WorkBudget,
    *,
    max_event_bytes: int,
    prior_step: PublishingStep,
) -> None:
    """Raise `BatchRejected` at the first invalid event, or at the event at which the steps are used up."""
    has_metadata = event_type.category is not Category.UNDEFINED
    first = 0
    for piece in batch.in_pieces():
        too_large = piece.oversized_event_sizes(max_event_bytes)
        are_certainly_valid = validator.quick_check(piece.text)
        if too_large or not are_certainly_valid(piece.events):
            certain = _count_certain(piece.events, are_certainly_valid)
            for index, event in enumerate(piece.events):
                problem = None if index < certain else _find_problem(event, validator, budget, has_metadata)
                if problem is None and index in too_large:
                    problem = event_too_large_message(too_large[index], max_event_bytes)
                if problem is not None:
                    raise BatchRejected(PublishingStep.VALIDATING, first + index, problem, prior_step=prior_step)
        first += len(piece)


def _count_certain(events: Sequence[Event], are_certainly_valid: Callable[[Sequence[Event]], bool]) -> int:
    """How many events are certainly valid before the first one that may not be. Looks at each event at most twice."""
    first, last = 0, len(events)
    while first < last:
        middle = (first + last) // 2
        if are_certainly_valid(events[first : middle + 1]):
            first = middle + 1
        else:
            last = middle
    return first


def _find_problem(event: Event, validator: Validator, budget: WorkBudget, has_metadata: bool) -> str | None:
    """The fault of an event, or the limit that it exceeds; None for a valid event."""
    valid = accepts_event(event, validator, budget)
    if valid is None:
        return VALIDATION_TOO_LONG_MESSAGE.format(budget.max_steps)
    if not valid:
        return validator.explain(event, budget.wait_for_turn)
    problem = timestamp_problem(event["metadata"]["occurred_at"]) if has_metadata else None
    return None if problem is None else f"#/metadata/occurred_at:{problem}"


def accepts_event(event: Event, validator: Validator, budget: WorkBudget) -> bool | None:
    """Whether an event is valid by its schema; None if that takes more steps than remain."""
    try:
        return validator.check(event, budget.steps)
    except RecursionError:
        return False
    except StepsExhausted:
        return _accepts_with_more_steps(event, validator, budget)


def _accepts_with_more_steps(event: Event, validator: Validator, budget: WorkBudget) -> bool | None:
    """Whether an event that used up all granted steps is valid: its validation starts again with more steps, until they
    suffice; None if the batch may not have that many.

    From the second time on, each attempt has twice as many steps as the one before, so that all attempts together take
    no more than twice the work of the last.
    """
    larger = False
    while True:
        try:
            budget.grant_more_steps(doubled=larger)
        except StepsExhausted:
            return None
        try:
            return validator.accepts(event, budget.steps)
        except StepsExhausted:
            larger = True


def check_delete_batch(
    event_type: EventType, batch: Batch, *, max_event_bytes: int, prior_step: PublishingStep
) -> None:
    """Raise `BatchRejected` if events of this type are not deleted, or at the first event that is too large."""
    if not event_type.cleanup_policy.compacts:
        raise BatchRejected(PublishingStep.VALIDATING)
    first = 0
    for piece in batch.in_pieces():
        for index, size in piece.oversized_event_sizes(max_event_bytes).items():
            problem = event_too_large_message(size, max_event_bytes)
            raise BatchRejected(PublishingStep.VALIDATING, first + index, problem, prior_step=prior_step)
        first += len(piece)


Owners = Sequence[Attribute | None]

METADATA_SELECTOR_MESSAGE = "event_owner_selector of type 'metadata' is not supported for JSON events"


def find_owners(batch: Batch, selector: OwnerSelector) -> Owners:
    match selector.type:
        case OwnerSelectorType.STATIC:
            return [_owner_attribute(selector.name, selector.value)] * len(batch)
        case OwnerSelectorType.PATH:
            rows = batch.rows_at((path_segments(selector.value or ""),))
            owners = [_owner_attribute(selector.name, value) for (value,) in rows]
        case OwnerSelectorType.METADATA if len(batch):
            # JSON events have no such metadata, and an event without an owner would be open to all readers.
            raise BatchRejected(PublishingStep.VALIDATING, 0, METADATA_SELECTOR_MESSAGE)
        case _:
            return []
    if None in owners:
        log.info("%d of %d events name no %s", owners.count(None), len(owners), selector.name)
    return owners


def check_owners(batch: Batch, owners: Owners, subject: Subject, permissions: Permissions) -> None:
    refused = {owner for owner in set(owners) if owner and not _may_write_for_owner(owner, subject, permissions)}
    index = next((index for index, owner in enumerate(owners) if owner in refused), None)
    if index is not None:
        [eid] = row_of_event(batch, index, (EID_PATH,))
        event = Resource(ResourceType.EVENT, "" if eid is UNSET or eid is None else java_text(eid))
        raise BatchRejected(PublishingStep.VALIDATING, index, permission_denied_error(Operation.WRITE, event).detail)


def _may_write_for_owner(owner: Attribute, subject: Subject, permissions: Permissions) -> bool:
    lists = Authorization(admins=(), readers=(owner,), writers=(owner,))
    return permissions.allows(Operation.WRITE, Resource(ResourceType.EVENT, "", lists), subject)


def _owner_attribute(name: str, value: Any) -> Attribute | None:
    return None if value is None or value is UNSET else Attribute(name, java_text(value))
