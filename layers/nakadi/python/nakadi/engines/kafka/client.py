"""Clients of a Kafka cluster: their connections, the meaning of its errors, and which library messages are logged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from msgspec import Struct, field

from nakadi.model.outcomes import Unavailable
from nakadi.ports.event_log import OffsetUnavailable, UnknownTopic

_log = logging.getLogger("nakadi.kafka")

REQUEST_TIMEOUT_SECONDS = 10.0
"""How long a request to the cluster may take by default. After that, its outcome is unknown, and callers may try
again."""

MIN_REQUEST_TIMEOUT_SECONDS = 2.0
"""The library requires a timeout that is a second longer than the longest wait of a fetch."""

LOOK_UP_TIMEOUT_SECONDS = 0.5
"""How long a look-up of a topic may take. If it fails, a later one finds the topic too, and other work waits
meanwhile.
"""

CHECK_TIMEOUT_SECONDS = 5.0

TRANSIENT_ERRORS = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._NOENT,  # noqa: SLF001  # no leader yet, in the library's own words
}
"""The answers of servers for a moment after the creation of a topic, or after another server took over a partition."""

UNKNOWN_TOPIC_ERRORS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_EXCEPTION,  # the name is not valid for a topic
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  # the library's own names
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}

OUT_OF_RANGE_ERRORS = {
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001  # the error of a consumer that may not choose another offset
}

REPEATED_LINE_INTERVAL_SECONDS = 60.0
"""A line is logged once in this time: while a server is unavailable, the library repeats it several times a second."""


DISCARD_DELAY_SECONDS = 1.0


class RepeatedLineFilter(logging.Filter):
    """Passes a line unless the same line was logged within `REPEATED_LINE_INTERVAL_SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # Repeated lines differ only after this text, in durations and numbers of repetitions.
        line, now = record.getMessage().split(" (after ")[0], time.monotonic()
        if now - self._last.get(line, -REPEATED_LINE_INTERVAL_SECONDS) < REPEATED_LINE_INTERVAL_SECONDS:
            return False
        self._last = {
            each: moment for each, moment in self._last.items() if now - moment < REPEATED_LINE_INTERVAL_SECONDS
        } | {line: now}
        return True


_log.addFilter(RepeatedLineFilter())


class ClusterAddress(Struct, frozen=True):
    """Where a cluster is: `kafka://host:9092,host:9092?prefix=nakadi-&replication=3&properties=/etc/kafka.properties`.

    The names of topics begin with `prefix`. `replication_factor` is the number of copies, by default the cluster's own
    default. `timeout_seconds` is how long a request, or an append, may take before it counts as failed. `iam` is the
    AWS region of an MSK cluster to which the process signs in with its role. The file `properties` has settings of
    librdkafka, one `name=value` per line: secrets belong in this file, because URLs appear in logs.
    """

    servers: str
    prefix: str = ""
    replication_factor: int = -1
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    iam_region: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        # The text omits the properties, because some are secret.
        return f"ClusterAddress({self.servers!r}, {self.prefix!r}, {self.replication_factor})"

    @classmethod
    def parse(cls, url: str) -> ClusterAddress:
        parts = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        file = options.get("properties")
        return cls(
            parts.netloc,
            options.get("prefix", ""),
            int(options.get("replication", "-1")),
            max(float(options.get("timeout", REQUEST_TIMEOUT_SECONDS)), MIN_REQUEST_TIMEOUT_SECONDS),
            options.get("iam", ""),
            _parse_properties(Path(file).read_text(encoding="utf-8")) if file else {},
        )

    def client_settings(self, **others: object) -> dict[str, Any]:
        """The settings of a client of the library; `others` have underscores in place of dots."""
        common = {
            "bootstrap.servers": self.servers,
            "client.id": "nakadi",
            "socket.timeout.ms": int(self.timeout_seconds * 1000),
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": 2000,
            # After this time, the library reports that a topic was deleted.
            "topic.metadata.propagation.max.ms": 2000,
            **(_iam_settings(self.iam_region) if self.iam_region else {}),
            **self.properties,
        }
        return common | {name.replace("_", "."): value for name, value in others.items()}


def _iam_settings(region: str) -> dict[str, object]:
    from nakadi.engines.common.msk_tokens import new_token_and_expiry  # noqa: PLC0415  # botocore is only there where it is needed

    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        # A thread of the library calls this function, even while no request is in progress.
        "oauth_cb": lambda _configuration: new_token_and_expiry(region),
    }


def _parse_properties(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def new_producer(address: ClusterAddress, **settings: object) -> Producer:
    return Producer(address.client_settings(**settings), logger=_log)


def new_admin_client(address: ClusterAddress) -> AdminClient:
    return AdminClient(address.client_settings(), logger=_log)


def new_consumer(address: ClusterAddress, **settings: object) -> Consumer:
    """A consumer with assigned partitions. It joins no group and stores no offsets, but the library requires a group
    id.
    """
    return Consumer(
        address.client_settings(
            group_id="nakadi",
            enable_auto_commit=False,
            auto_offset_reset="error",
            allow_auto_create_topics=False,
            **settings,
        ),
        logger=_log,
    )


def look_up_topic(client: Consumer | Producer, name: str) -> bool:
    """Let a client look up where the partitions of a topic are. Return False if the look-up fails.

    Without this call, the library looks up unknown topics only once a second, and fetches nothing from them until then.
    """
    try:
        client.list_topics(name, timeout=LOOK_UP_TIMEOUT_SECONDS)
    except KafkaException:
        return False
    return True


def discard_client(client: object) -> None:
    """Release a client that may have lost the cluster for good. The library may never finish releasing it, so nothing
    waits for that.
    """
    threading.Thread(target=_destroy_after_delay, args=([client],), name="kafka-discard", daemon=True).start()


def _destroy_after_delay(clients: list[object]) -> None:
    # The library's client ends with its last reference. By then, `clients` should have the last one.
    time.sleep(DISCARD_DELAY_SECONDS)
    clients.clear()


@contextmanager
def translate_errors(topic: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise as_port_error(error.args[0], topic) from error
    except TimeoutError as error:
        raise Unavailable(f"Kafka: {topic}: no answer in time") from error


def as_port_error(error: Any, topic: str) -> Exception:
    code = error.code()
    if code in UNKNOWN_TOPIC_ERRORS:
        return UnknownTopic(topic)
    if code in OUT_OF_RANGE_ERRORS:
        return OffsetUnavailable(f"{topic}: {error.str()}")
    return Unavailable(f"Kafka: {topic}: {error.name()}: {error.str()}")


def kafka_error_code(error: BaseException) -> int | None:
    """The code of the cluster's answer, if that answer caused the error."""
    cause = error.__cause__
    return cause.args[0].code() if isinstance(cause, KafkaException) else None


def check_cluster(url: str) -> None:
    client = new_admin_client(ClusterAddress.parse(url))
    with translate_errors("the cluster"):
        client.list_topics("nakadi", timeout=CHECK_TIMEOUT_SECONDS)
