"""The settings of a broker, read from environment variables."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from nakadi.model.outcomes import BadSetting

if TYPE_CHECKING:
    from nakadi.http.hosts import ServedHosts


log = logging.getLogger(__name__)

VARIABLES_OF_OTHERS = frozenset(
    {
        *("NAKADI_URL", "NAKADI_TOKEN", "NAKADI_CONFIG", "NAKADI_RELAY_DSN"),  # the command line
        "NAKADI_CATALOG_TOKEN",  # `nakadi sql`
        *("NAKADI_EVENT_TYPE", "NAKADI_PARTITION", "NAKADI_OFFSET"),  # which it sets for the commands that it runs
    }
)
"""Variables that are not settings of a broker, and may be in its environment."""

# Variables that Kubernetes and Docker set in containers for a service with the name `nakadi`.
SERVICE_LINK_PATTERN = re.compile(r"NAKADI(?:_\w+)?_(?:PORT|SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_\w+)")


def _parse_integer(text: str) -> int:
    return int(text)


def _parse_comma_separated(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _parse_pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = tuple(tuple(part.strip() for part in word.split("=", 1)) for word in _parse_comma_separated(text))
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ValueError
    return tuple((first, second) for first, second in pairs)


def _parse_orders(text: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Permutations of the numbers from 0 to n - 1, by their n."""
    orders = tuple((int(number), tuple(map(int, order.split(":")))) for number, order in _parse_pairs(text))
    if any(sorted(order) != list(range(number)) for number, order in orders):
        raise ValueError
    return orders


# While authentication is off, every subject counts as an administrator anyway.
UNAUTHENTICATED_ADMIN = (("service", "nakadi_admin"),)


class Settings(Struct, frozen=True, kw_only=True):
    """Each field is read from the variable `NAKADI_<FIELD>`.

    The comments name groups, and the texts below the fields describe them: `scripts/settings_reference.py` writes
    docs/settings.md from both.
    """

    # Storage
    registry: str = "memory:"
    """The store for event types, subscriptions and the decisions of administrators: `memory:`,
    `sqlite:///data/nakadi.db` or `dynamodb://table-prefix?region=eu-central-1`."""
    event_log: str = "memory:"
    """The store for events: `memory:`, `sqlite:///data/nakadi.db`, `kinesis://stream?region=eu-central-1` or
    `kafka://host:9092,host:9092?prefix=nakadi-&replication=3&timeout=10`. With Kafka, topic names begin with `prefix`,
    `replication` is the number of copies (by default the cluster's own), and `timeout` is the number of seconds after
    which a request to the cluster counts as failed, at least 2; `iam=eu-central-1` signs in to Amazon MSK with IAM, and
    `properties=/path/to/file` names a file like `NAKADI_KAFKA_PROPERTIES`."""
    coordination: str = ""
    """The store for the cursors of subscriptions, and for the assignment of partitions to their streams: `memory:`,
    `sqlite:///data/nakadi.db` or `dynamodb://table-prefix?region=eu-central-1`. Empty: the registry's store."""
    log_index: str = ""
    """The store for the index of the archive and, with Kinesis, for the progress of the log indexer:
    `sqlite:///data/nakadi.db` or `dynamodb://table-prefix?region=eu-central-1`. Empty: the event log's data file if it
    has one, the registry's store if events are in Kafka, and memory otherwise. An index in memory is lost when the
    process ends: the log indexer then indexes Kinesis again from its oldest record, and nobody can read the archive."""
    kafka_properties: str = ""
    """A file of librdkafka's settings for storages of type `kafka`, one `name=value` a line: how to log in, which
    certificates to trust. Put secrets into this file, because clients can read the definitions of storages. For the
    default storage, `properties=/path/to/file` in the URL of `NAKADI_EVENT_LOG` names such a file."""
    archive: str = ""
    """The place for old events: a folder, `file:///folder` or `s3://bucket/prefix?region=eu-central-1`. Empty: there is
    no archive, and no event stays longer than the event log keeps it. `python -m nakadi.local` uses the folder
    `archive` beside its data file, unless `NAKADI_ARCHIVE=` switches the archive off."""
    archiver: str = "broker"
    """`broker`: each process archives the events that it appends. `function`: the log indexer, a function that runs on
    a schedule, archives events, and the other processes only read the archive. With Kinesis, the log indexer always
    archives."""
    archive_after_seconds: int = 60
    """About how many seconds the broker waits before it archives an event. With Kinesis, the log indexer decides when
    to archive."""
    archive_grace_seconds: int = 86_400
    """How long the broker keeps an archive object to which the log index no longer refers, so that reads in progress
    can end. At least 600."""
    hot_retention_ms: int = 86_400_000
    """How long an event log with an archive keeps archived events. The retention time of an event type may be shorter
    or longer. With Kinesis, the retention of the stream decides."""

    # Authentication and authorization
    hosts: tuple[str, ...] = ()
    """Further names under which the broker answers while authentication is off and the broker is bound to this machine.
    It rejects requests for all hosts other than these, `localhost`, `127.0.0.1` and `[::1]` with 421, so that no page
    of a web site can use the broker ([operations](operations.md#names-of-the-broker)). `*`: every name."""
    auth: str = "off"
    """`off`: the broker does not authenticate requests. `jwt`: each request needs a bearer token. `gateway`: an
    authorizer in front of the broker has checked the token."""
    auth_jwks: str = ""
    """The file or URL of the key set (JWKS) with which the broker verifies the signatures of tokens."""
    auth_issuer: str = ""
    """The required `iss` claim of tokens. Empty: any value."""
    auth_audience: str = ""
    """The required `aud` claim of tokens. Empty: any value."""
    auth_algorithms: tuple[str, ...] = ("RS256", "ES256")
    """The accepted signature algorithms."""
    auth_leeway_seconds: int = 30
    """The permitted difference between the clocks of the issuer and of the broker."""
    auth_subject_claim: str = "sub"
    """The claim with the name of the subject."""
    auth_attributes: tuple[tuple[str, str], ...] = (("user", "sub"), ("service", "sub"), ("team", "teams"))
    """The claims that provide authorization attributes. If one claim provides both `user` and `service`,
    `NAKADI_AUTH_SERVICE_REALMS` decides which of the two attributes a token has."""
    auth_realms: tuple[str, ...] = ()
    """The accepted values of the `realm` claim. Empty: any, including none."""
    auth_service_realms: tuple[str, ...] = ("/services", "services")
    """Tokens with one of these `realm` claims belong to services: these tokens have the attribute `service`, and all
    other tokens have `user`. `*`: all tokens belong to services."""
    scope_uid: str = "uid"
    """The scope for all operations without a scope of their own. Empty: these operations need no scope."""
    scope_config_write: str = "nakadi.config.write"
    """The scope for deleting event types."""
    scope_event_type_write: str = "nakadi.event_type.write"
    """The scope for creating and changing event types."""
    scope_event_stream_read: str = "nakadi.event_stream.read"
    """The scope for reading events."""
    scope_event_stream_write: str = "nakadi.event_stream.write"
    """The scope for publishing events."""
    default_admin: tuple[tuple[str, str], ...] = ()
    """Attributes that are always administrators, such as `user=ann,service=ops`. Empty: none, unless authentication is
    off."""
    all_data_access: tuple[tuple[str, str], ...] = ()
    """Attributes that may read the events of every event type."""

    # Limits for event types, batches and subscriptions
    default_partitions: int = 1
    """The number of partitions of an event type without `default_statistic`."""
    max_partitions: int = 8
    """The largest number of partitions of an event type."""
    retention_min_ms: int = 10_800_000
    """The shortest `retention_time`."""
    retention_default_ms: int = 172_800_000
    """The `retention_time` of a new event type that sets none."""
    retention_max_ms: int = 345_600_000
    """The longest `retention_time`."""
    max_event_bytes: int = 999_000
    """The largest size of an event."""
    max_batch_events: int = 10_000
    """The largest number of events in a batch. The broker rejects a larger batch with 413."""
    max_batch_steps: int = 50_000_000
    """The largest number of steps that the validation of all events in a batch may take together. The broker rejects a
    batch that takes more steps with 422. 20 million steps take about a second at worst; ordinary events take 0.1 to 3
    steps per byte."""
    hash_orders: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """The orders of partitions for the strategy `hash`, one for each number of partitions. Set this variable only if
    you migrate from an original Nakadi that remaps the partitions of keys (`nakadi.hash-partitioning.override-order`),
    to the same orders, so that keys stay in their partitions: `4=3:1:0:2,8=7:6:5:4:3:2:1:0`."""
    max_request_memory_bytes: int = 1_073_741_824
    """The most memory for the bodies of all requests in progress, as sent, decompressed and parsed. The broker rejects
    a request that would exceed this limit with 503 and `Retry-After`, and a request that alone exceeds it with 413."""
    max_subscription_partitions: int = 100
    """The largest number of partitions of a subscription."""

    # Subscriptions and dead letters
    max_commit_timeout_seconds: int = 60
    """The longest time that a stream waits for a commit. A reset of cursors waits for the end of streams a second
    longer."""
    deletable_subscription_owning_application: str = "nakadi_archiver"
    """Subscriptions of this application, in the consumer group of the next setting, do not prevent the deletion of
    their event type: the broker deletes these subscriptions together with the event type."""
    deletable_subscription_consumer_group: str = "nakadi_to_s3"
    """The consumer group for `NAKADI_DELETABLE_SUBSCRIPTION_OWNING_APPLICATION`."""
    dead_letter_queue: str = "nakadi.dead.letter.queue"
    """The event type for dead letters: events that a subscription's consumers could not process. The broker creates
    this event type."""
    dead_letter_redrive: str = "nakadi.dead.letter.redrive"
    """The event type to which you publish dead letters again, with a tag that names the subscription. An operator has
    to create this event type."""
    dead_letter_owning_application: str = "stups_nakadi"
    """The owning application of the event type for dead letters."""
    dead_letter_authorization: tuple[tuple[str, str], ...] = ()
    """Attributes that may administer, read and write a new event type for dead letters, such as
    `service=dlq-viewer,team=ops`; `*=*` for everyone. Empty: the attributes in `NAKADI_DEFAULT_ADMIN`, or everyone
    while authentication is off."""

    # Sinks
    sink_schemes: tuple[str, ...] = ("https",)
    """The schemes that the URL of a sink may have: `https`, or `https,http`."""
    sink_networks: tuple[str, ...] = ()
    """Networks that sinks may be in, beside the internet, such as `10.1.0.0/16,127.0.0.1/32`. The broker does not
    deliver to other private, loopback, link-local or multicast addresses ([push](push.md#what-is-safe))."""
    sink_key: str = ""
    """The ARN of the key in AWS KMS that encrypts the secrets of sinks. Empty: the broker uses a key in a file beside
    the data file; with a registry in DynamoDB, it then refuses sinks."""
    sink_targets: tuple[str, ...] = ()
    """The ARNs of functions, queues, topics and event buses that sinks may deliver to, with `*` for any text, such as
    `arn:aws:sqs:eu-central-1:123456789012:orders-*`. The broker calls them with its own permissions
    ([push](push.md#functions-queues-topics-and-buses)). Empty: none."""

    # Audit log, KPIs and metrics
    audit_owning_application: str = "stups_nakadi"
    """The owning application of the event type for the audit log."""
    audit_authorization: tuple[tuple[str, str], ...] = ()
    """The same as `NAKADI_DEAD_LETTER_AUTHORIZATION`, for `nakadi.audit.log`."""
    kpi_owning_application: str = "stups_nakadi"
    """The owning application of the event types for KPIs."""
    kpi_authorization: tuple[tuple[str, str], ...] = ()
    """The same as `NAKADI_DEAD_LETTER_AUTHORIZATION`, for the event types for KPIs."""
    hash_salt: str = "salt"
    """The text that the broker puts before the name of a subject when it hashes the name for the audit log and KPIs."""
    max_metric_names: int = 200
    """The number of event types, and of subscriptions, that have their own [metrics](metrics.md) in a process. The
    value `other` adds up the rest."""

    # Traces
    traces: str = ""
    """`otlp`: the broker sends spans to the receiver that `OTEL_EXPORTER_OTLP_ENDPOINT` names ([traces](tracing.md)).
    Empty: the broker sends no spans, and does not load the libraries for them."""
    traces_percent: int = 1
    """The percentage of traces that the broker records, among those that it begins itself. For a trace that a client
    began, the client decides."""
    metrics: str = ""
    """`otlp`: the broker sends its [metrics](metrics.md) to the receiver that `OTEL_EXPORTER_OTLP_ENDPOINT` names
    ([metrics and logs](tracing.md#metrics-and-logs)). Empty: it does not send them. Prometheus can read the metrics in
    both cases."""
    logs: str = ""
    """`otlp`: the broker also sends its log, without secrets, to the receiver that `OTEL_EXPORTER_OTLP_ENDPOINT` names.
    Empty: it does not send the log."""

    # Tables
    table_job: str = ""
    """The Glue job that housekeeping on AWS starts when archived events wait for their tables. Empty: none."""
    table_minutes: int = 15
    """How long the oldest event that is not in its table may wait before housekeeping starts `NAKADI_TABLE_JOB`."""
    compaction_wait_hours: int = 48
    """The longest time for which the broker's compaction of an event type waits until [tables](analytics.md) have the
    events that it will remove. It waits only if events are archived. 0: it does not wait; choose this value if no job
    writes tables."""

    # Queries
    tables: str = ""
    """Where queries find the tables of the jobs, in the form of [`nakadi sql --tables`](sql.md): a folder, an `s3://`
    prefix, `glue`, or the URL of a REST catalog. Empty: queries read only the log, with its archived events. `python -m
    nakadi.local` uses the folder `tables` beside its data file, where `make jobs` puts them."""
    tables_database: str = "nakadi"
    """The database of the tables in `NAKADI_TABLES`, the same as the argument `--database` of the jobs."""
    queries: int = 2
    """How many [queries](sql.md#queries-over-http) may run at once, each in a process of its own. 0: none, and the
    console has no page for queries. Several processes share this number in equal parts, but each may run at least
    one. On AWS, the [deployment](sql.md#on-aws) decides."""
    query_seconds: int = 30
    """How long a query may take."""
    query_megabytes: int = 512
    """How much memory a query may take. Data that does not fit into this memory may take as much space on the disk. The
    process of the query needs up to 500 megabytes in addition."""
    query_rows: int = 1000
    """The largest number of rows of a result that a query returns."""

    # Processes
    workers: int = 1
    """How many processes answer requests in `python -m nakadi.local`; `make run WORKERS=…` sets this variable. If it is
    not set, that program starts one process for each core, eight at most. More than one process needs a data file. The
    first process also accepts connections, commits all events in that file and does the housekeeping
    ([operations](operations.md#several-processes)). All processes share `NAKADI_MAX_REQUEST_MEMORY_BYTES` in equal
    parts."""

    # Limits of a gateway in front of the broker
    longest_stream_seconds: int = 0
    """The longest duration of a stream, even if its client asks for more. 0: the limit of the API, 4200 s."""
    longest_silence_seconds: int = 0
    """The longest time between two lines of a stream, even if its client asks for fewer keep-alives. 0: as the client
    asks."""
    longest_wait_seconds: int = 0
    """The longest time for which a request waits for streams to end when it sets cursors, adds partitions or redrives
    parked events. After that time, the broker answers 503, and still carries out the request. 0: as long as a stream
    may wait for commits."""

    # Texts
    data_access_warning: str = "Data access warning"
    """The text of the `Warning` header after an event type was created or changed."""
    compaction_warning: str = "Compaction warning"
    """The second sentence of the `Warning` header for an event type with the cleanup policy `compact`."""

    # Console
    console: str = ""
    """The folder of the built console, which `python -m nakadi.local` serves at `/console`; `make run` builds a console
    and sets this variable. Empty: the console in the wheel. Without a console, `/console` says how to build it."""
    console_sign_in: tuple[tuple[str, str], ...] = ()
    """How users of the console get a token (OIDC, authorization code with PKCE):
    `authorize=https://id.example.org/authorize,token=https://id.example.org/token,client=console,scope=openid uid`. The
    client is public, and its redirect URL is the console. Empty: users enter a token if the broker requires one."""

    # Caching
    cache_seconds: int = 1
    """The greatest age of cached registry documents. A busy process checks for changes at this interval, regardless of
    how many documents it caches ([why](decisions/0012-one-number-for-what-changed.md))."""

    def served_hosts_at(self, bound_address: str) -> ServedHosts | None:
        """The hosts that a server on this address serves; None means every host. Raises `BadSetting`."""
        from nakadi.http.hosts import choose_served_hosts  # functions do not need this module

        return choose_served_hosts(bound_address, is_authenticated=self.auth != "off", names=self.hosts)

    @property
    def store_urls(self) -> tuple[str, ...]:
        """The URLs of all stores except the archive."""
        return (self.registry, self.event_log, self.coordination, self.log_index)

    @property
    def default_admins(self) -> tuple[tuple[str, str], ...]:
        """The attributes that are always administrators. While authentication is on, these are only the ones that the
        setting names.
        """
        return self.default_admin or (UNAUTHENTICATED_ADMIN if self.auth == "off" else ())

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read the variables that are set; the other fields keep their defaults. Raises `BadSetting`."""
        found = {
            name: _parse_variable(variable, environ, kind)
            for name, kind in cls.__annotations__.items()
            if (variable := f"NAKADI_{name.upper()}") in environ
        }
        return cls(**found)


PARSERS_BY_TYPE: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": _parse_integer,
    "tuple[tuple[int, tuple[int, ...]], ...]": _parse_orders,
    "tuple[str, ...]": _parse_comma_separated,
    "tuple[tuple[str, str], ...]": _parse_pairs,
}


def _parse_variable(variable: str, environ: Mapping[str, str], kind: str) -> Any:
    try:
        return PARSERS_BY_TYPE[kind](environ[variable])
    except ValueError as error:
        raise BadSetting(f"{variable} is not {kind}: {environ[variable]!r}") from error


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of this process, as `Settings.from_env` reads them. Variables that only look like settings are
    logged.
    """
    settings = Settings.from_env(environ)
    for warning in warnings_of_unknown_variables(environ):
        log.warning("%s", warning)
    return settings


def known_variables() -> frozenset[str]:
    """Every variable with this prefix that has a meaning."""
    return VARIABLES_OF_OTHERS.union(f"NAKADI_{name.upper()}" for name in Settings.__annotations__)


def warnings_of_unknown_variables(names: Iterable[str]) -> Iterator[str]:
    """A warning for each variable that looks like a setting but is none. It omits the value, which may be secret."""
    known = known_variables()
    for name in sorted(names):
        if name.upper().startswith("NAKADI_") and name not in known and not SERVICE_LINK_PATTERN.fullmatch(name):
            from difflib import get_close_matches  # hardly any process needs it

            near = get_close_matches(name.upper(), known, n=1, cutoff=0.8)
            hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all settings."
            yield f"{name} is not a setting and changes nothing; {hint}"
