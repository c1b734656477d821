"""Computes the result of publishing a batch in a slow and obvious way: with the parser of the standard library, on
dicts, event by event. It uses the package's rules, such as its validators and their explanations, but none of its code
that parses, enriches and partitions batches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nakadi.event_types.effective_schemas import effective_schema_of
from nakadi.model.authorization import Attribute, Subject
from nakadi.model.event_type import Category, EnrichmentStrategy, EventType, OwnerSelectorType, PartitionStrategy
from nakadi.schemas.explanation import NO_EXPLANATION_MESSAGE
from nakadi.schemas.formats import timestamp_problem
from nakadi.schemas.validation import compile_validator
from nakadi.schemas.values import java_text

MALFORMED = "Error occurred when parsing event(s)."
RECEIVED_AT = "2026-11-21T12:00:00.000Z"  # the test's clock stands still
_BLANKS = " \t\r\n"
_MAX_LEVELS = 200


class ModelRecord(NamedTuple):
    """A stored event: its members as pairs, with numbers as they were written, and its metadata separately."""

    members: Any
    metadata: Any
    key: str | None
    owner: Attribute | None
    directed_to: str | None


class ModelOutcome(NamedTuple):
    """`items` has the response for each event of a rejected batch: status, step, detail, eid and partition."""

    verdict: str
    items: Sequence[tuple[str, str, str, str, str | None]] = ()
    stored: dict[int, list[ModelRecord]] = {}  # noqa: RUF012  # never changed


class _BatchRejected(Exception):
    def __init__(self, step: str, index: int, detail: str, prior: str, partitions: Sequence[int] = ()) -> None:
        super().__init__(detail)
        self.step, self.index, self.detail, self.prior, self.partitions = step, index, detail, prior, partitions


def _dict_without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a repeated key")
    return dict(pairs)


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(text)
    return int(text)


def _float(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(text)
    return float(text)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_VALUES = json.JSONDecoder(
    object_pairs_hook=_dict_without_repetition, parse_int=_integer, parse_float=_float, parse_constant=_refuse
)
_SPELLED = json.JSONDecoder(
    object_pairs_hook=lambda pairs: ("object", *pairs),
    parse_int=lambda text: ("number", text),
    parse_float=lambda text: ("number", text),
)


def spelled_members(text: str) -> tuple[Any, Any]:
    """The members of an event as pairs, with None for the metadata, and the metadata. Numbers stay as they were
    written.
    """
    _, *pairs = _SPELLED.decode(text)
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), text
    metadata = dict(pairs).get("metadata")
    if isinstance(metadata, tuple) and metadata[0] == "object":
        metadata = dict(metadata[1:])
    return [(name, None if name == "metadata" else value) for name, value in pairs], metadata


def _levels(value: Any) -> int:
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if within is None else 1 + max(map(_levels, within), default=0)


def _events_in(body: bytes) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each event and its text. The body may have too few or too many commas between events."""
    text = body.decode().strip(_BLANKS)
    if len(text) < 2 or text[0] != "[" or text[-1] != "]":
        raise ValueError("no array")
    at, last = 1, len(text) - 1
    while True:
        while at < last and text[at] in _BLANKS + ",":
            at += 1
        if at == last:
            return
        event, end = _VALUES.raw_decode(text[:last], at)
        if not isinstance(event, dict) or _levels(event) > _MAX_LEVELS:
            raise ValueError("no object, or too deep")
        json.dumps(event, ensure_ascii=False).encode()  # raises if half a surrogate pair is in the event
        yield event, text[at:end]
        at = end


class PublishingModel:
    """Publishes to one event type. `max_event_bytes` is the limit for one event."""

    def __init__(self, event_type: EventType, max_event_bytes: int, *, owners: bool) -> None:
        self._event_type = event_type
        self._max_event_bytes = max_event_bytes
        self._selector = event_type.event_owner_selector if owners else None
        self._validator = compile_validator(effective_schema_of(event_type))
        self._has_metadata = event_type.category is not Category.UNDEFINED

    def publish(
        self, body: bytes, subject: Subject, flow_id: str, directed_to: str | None, draws: list[float]
    ) -> ModelOutcome:
        try:
            sent = list(_events_in(body))
        except (ValueError, RecursionError):
            return ModelOutcome("malformed")
        events = [event for event, _ in sent]
        try:
            owners = self._owners(events, subject)
            self._validate(sent)
            partitions, keys = self._choose_partitions(events, draws)
        except _BatchRejected as rejected:
            return ModelOutcome("rejected", tuple(self._items(events, rejected)))
        if self._event_type.cleanup_policy.compacts:
            keys = [event["metadata"]["partition_compaction_key"] for event in events]
        stored: dict[int, list[ModelRecord]] = {}
        for (event, text), partition, key, owner in zip(sent, partitions, keys, owners, strict=True):
            members, metadata = spelled_members(text)
            if EnrichmentStrategy.METADATA in self._event_type.enrichment_strategies:
                metadata = self._enrich(event["metadata"], subject, flow_id, partition)
            stored.setdefault(partition, []).append(ModelRecord(members, metadata, key, owner, directed_to))
        return ModelOutcome("stored", stored=stored)

    def _items(
        self, events: Sequence[dict[str, Any]], rejected: _BatchRejected
    ) -> list[tuple[str, str, str, str, str | None]]:
        return [
            (
                "failed" if index == rejected.index else "aborted",
                rejected.step if index <= rejected.index else rejected.prior,
                rejected.detail if index == rejected.index else "",
                _eid(event),
                str(rejected.partitions[index]) if index < len(rejected.partitions) else None,
            )
            for index, event in enumerate(events)
        ]

    def _owners(self, events: Sequence[dict[str, Any]], subject: Subject) -> list[Attribute | None]:
        if self._selector is None:
            return [None] * len(events)
        found = [self._owner(event) for event in events]
        for index, owner in enumerate(found):
            if owner is not None and not subject.trusted and owner not in subject.attributes:
                detail = f"Access on WRITE event:{_eid(events[index])} denied"
                raise _BatchRejected("validating", index, detail, "none")
        return found

    def _owner(self, event: dict[str, Any]) -> Attribute | None:
        assert self._selector is not None
        value: Any = self._selector.value
        if self._selector.type is OwnerSelectorType.PATH:
            value = _value_at(event, value.split("."), None)
        return None if value is None else Attribute(self._selector.name, java_text(value))

    def _validate(self, sent: Sequence[tuple[dict[str, Any], str]]) -> None:
        prior = "none" if self._selector is None else "validating"
        for index, (event, text) in enumerate(sent):
            problem = self._validator.explain(event)
            if problem != NO_EXPLANATION_MESSAGE:
                raise _BatchRejected("validating", index, problem, prior)
            if self._has_metadata and (found := timestamp_problem(event["metadata"]["occurred_at"])) is not None:
                raise _BatchRejected("validating", index, f"#/metadata/occurred_at:{found}", prior)
            size = len(text.encode())
            if size > self._max_event_bytes:
                detail = f"Event too large: {size} bytes, max size is {self._max_event_bytes} bytes"
                raise _BatchRejected("validating", index, detail, prior)

    def _choose_partitions(
        self, events: Sequence[dict[str, Any]], draws: list[float]
    ) -> tuple[list[int], list[str | None]]:
        partitions: list[int] = []
        keys: list[str | None] = []
        number = self._event_type.timeline.partitions
        for index, event in enumerate(events):
            match self._event_type.partition_strategy:
                case PartitionStrategy.RANDOM:
                    partition, key = int(draws.pop(0) * number) if number > 1 else 0, None
                case PartitionStrategy.USER_DEFINED:
                    partition, key = self._check_wanted_partition(event, index, partitions), None
                case PartitionStrategy.HASH:
                    texts = [self._key(event, field, index, partitions) for field in self._key_fields]
                    partition, key = _partition_by_hash(texts, number), ",".join(texts)
            partitions.append(partition)
            keys.append(key)
        return partitions, keys

    @property
    def _key_fields(self) -> list[str]:
        return [field for field in self._event_type.partition_key_fields if field is not None]

    def _check_wanted_partition(self, event: dict[str, Any], index: int, partitions: list[int]) -> int:
        wanted = event["metadata"].get("partition")
        detail = "Failed to resolve partition. "
        if wanted is None:
            detail += "Failed to get partition from event metadata"
        elif wanted in self._event_type.partitions:
            return int(wanted)
        else:
            detail += f"Invalid partition specified when publishing event: {wanted}"
        raise _BatchRejected("partitioning", index, detail, "validating", partitions)

    def _key(self, event: dict[str, Any], field: str, index: int, partitions: list[int]) -> str:
        path = field.split(".")
        root = event["data"] if self._event_type.category is Category.DATA else event
        missing = object()
        value = root
        for name in path:
            value = value.get(name, missing) if isinstance(value, dict) else missing
            if value is missing:
                raise _BatchRejected("partitioning", index, f"field {name} doesn't exist.", "validating", partitions)
        return java_text(value)

    def _enrich(self, metadata: dict[str, Any], subject: Subject, flow_id: str, partition: int) -> dict[str, Any]:
        return {
            **metadata,
            "published_by": subject.name,
            "received_at": RECEIVED_AT,
            "event_type": self._event_type.name,
            "version": str(self._event_type.schema.version),
            "flow_id": metadata.get("flow_id") or flow_id,
            "partition": str(partition),
        } | ({"span_ctx": ("object", *metadata["span_ctx"].items())} if "span_ctx" in metadata else {})


def _eid(event: dict[str, Any]) -> str:
    eid = _value_at(event, ["metadata", "eid"], None)
    return "" if eid is None else java_text(eid)


def _value_at(event: Any, path: Sequence[str], missing: Any) -> Any:
    for name in path:
        event = event.get(name, missing) if isinstance(event, dict) else missing
    return event


def _partition_by_hash(keys: Sequence[str], number: int) -> int:
    total = sum(map(_java_hash, keys)) % 2**32
    total = abs(total - 2**32 if total >= 2**31 else total)
    return int(sorted(map(str, range(number)))[total % number])


def _java_hash(text: str) -> int:
    """The hash of a string as Java computes it, from its UTF-16 units."""
    units, total = text.encode("utf-16-be"), 0
    for at in range(0, len(units), 2):
        total = (31 * total + int.from_bytes(units[at : at + 2])) % 2**32
    return total
