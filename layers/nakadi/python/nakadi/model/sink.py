"""Sinks: where the broker itself delivers the events of a subscription."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from nakadi.model.authorization import Subject


class SinkType(StrEnum):
    HTTP = "http"
    EVENT_TYPE = "event-type"
    """The sink is another event type of this broker."""
    LAMBDA = "lambda"
    SQS = "sqs"
    SNS = "sns"
    EVENTBRIDGE = "eventbridge"


TARGET_MEMBERS: Mapping[SinkType, str] = {
    SinkType.HTTP: "url",
    SinkType.EVENT_TYPE: "name",
    SinkType.LAMBDA: "function",
    SinkType.SQS: "queue",
    SinkType.SNS: "topic",
    SinkType.EVENTBRIDGE: "bus",
}
"""The member of a sink that has its target: each type has its own name for this member."""


def target_member(sink_type: str | None) -> str:
    """The member that says where a sink of this type delivers to; for an unknown type, the member of `http`."""
    known: Mapping[str, str] = {each.value: member for each, member in TARGET_MEMBERS.items()}
    return known.get(sink_type or "", TARGET_MEMBERS[SinkType.HTTP])


class SinkFormat(StrEnum):
    NAKADI = "nakadi"
    CLOUDEVENTS = "cloudevents"


class Parallel(StrEnum):
    """Which deliveries may be in progress at the same time."""

    PARTITION = "partition"
    """Deliveries of different partitions."""
    KEY = "key"
    """Deliveries of different partitions or of different keys."""


DEFAULT_BATCH_LIMIT = 100
DEFAULT_TIMEOUT_SECONDS = 30
DEFAULT_MAX_IN_FLIGHT = 1

GENERATED_SECRET = "generated"  # noqa: S105  # says that the broker makes one


class SinkDraft(Struct, frozen=True, kw_only=True):
    """A sink as a client sends it; missing members have their defaults here.

    `filter` is a condition on events, as in `schemas.conditions`; without one, all events are delivered. `target` is
    the value of the member that `TARGET_MEMBERS` names for its type. `secret` is `generated`, a secret of the client's,
    or None: then a new sink gets a secret, and an existing sink keeps its own.
    """

    type: str | None = None
    target: str | None = None
    secret: str | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    format: SinkFormat = SinkFormat.NAKADI
    batch_limit: int = DEFAULT_BATCH_LIMIT
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    parallel: Parallel = Parallel.PARTITION
    filter: str | None = None


class SinkPause(Struct, frozen=True):
    """A pause of a sink: why nothing is delivered, and since when."""

    reason: str
    at: datetime


class Sink(Struct, frozen=True, kw_only=True):
    """A registered sink; a subscription has at most one. `target` is the destination: a URL, a name or an ARN.

    `sealed` has the encrypted `SinkSecrets`, which only the broker's key decrypts. Events are read with the permissions
    of `subject`, who registered the sink. `configured_at` is when anything but the pause last changed. `revision`
    counts the writes.
    """

    subscription_id: str
    type: SinkType
    target: str
    header_names: tuple[str, ...]
    sealed: str
    format: SinkFormat
    batch_limit: int
    timeout_seconds: int
    max_in_flight: int
    parallel: Parallel = Parallel.PARTITION
    filter: str | None = None
    subject: Subject
    created_at: datetime
    configured_at: datetime
    pause: SinkPause | None = None
    revision: int = 0

    @property
    def target_by_member(self) -> Mapping[str, str]:
        """The target, under the member name that belongs to the sink's type."""
        return {target_member(self.type): self.target}


class SigningSecret(Struct, frozen=True):
    """A secret with which deliveries are signed until it expires."""

    value: str
    expires_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at


class SinkSecrets(Struct, frozen=True):
    """The confidential part of a sink: the secrets for signing, newest first, and the headers of each delivery."""

    signing: tuple[SigningSecret, ...]
    headers: Mapping[str, str]


class EndedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt to deliver the events of a partition from one offset up to another.

    `status` is the status of the answer, None if there was none. After a failure, `text` is the beginning of the
    answer, or the error.
    """

    at: datetime
    event_type: str
    partition: str
    first_offset: str
    last_offset: str
    events: int
    milliseconds: int
    delivered: bool
    status: int | None
    text: str = ""


class DeliveryReport(Struct, frozen=True, kw_only=True):
    """The state of deliveries to a sink, as the delivering process last wrote it.

    The counts begin with the process, or with the sink's last change. The newest attempt comes first. `problem` says
    why there is no stream.
    """

    process_id: str
    updated_at: datetime
    delivered_batches: int = 0
    delivered_events: int = 0
    failed_attempts: int = 0
    events_per_second: float = 0.0
    in_flight: int = 0
    next_attempt_at: datetime | None = None
    last_success_at: datetime | None = None
    last_failure: EndedAttempt | None = None
    recent_attempts: tuple[EndedAttempt, ...] = ()
    problem: str = ""

    @property
    def failure_now(self) -> EndedAttempt | None:
        """The last failure, unless an attempt has succeeded since."""
        failure, success = self.last_failure, self.last_success_at
        return None if failure is None or (success is not None and failure.at <= success) else failure
