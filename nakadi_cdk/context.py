"""What differs between deployments: read once from the CDK's context, into a type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from constructs import Node

from nakadi.app.settings import Settings
from nakadi.model.outcomes import BadSetting


class BadContext(Exception):
    """Raised for a value that cannot be; the message names it."""


# Settings that are decided here: where things are, who is asked, and what a gateway bears.
SETTING = "NAKADI_"
DECIDED = {
    *("registry", "event_log", "coordination", "log_index", "archive", "archiver"),
    *("auth", "auth_jwks", "auth_issuer", "auth_audience", "default_admin"),
    *("retention_max_ms", "longest_stream_seconds", "longest_silence_seconds", "longest_wait_seconds"),
    *("table_job", "table_minutes"),
}
CHOICES = {f"{SETTING}{each.upper()}" for each in Settings.__struct_fields__ if each not in DECIDED}

# Days that CloudWatch keeps logs for, as the CDK calls them.
LOG_DAYS: Mapping[int, str] = {
    1: "ONE_DAY",
    3: "THREE_DAYS",
    7: "ONE_WEEK",
    14: "TWO_WEEKS",
    30: "ONE_MONTH",
    60: "TWO_MONTHS",
    90: "THREE_MONTHS",
    180: "SIX_MONTHS",
    365: "ONE_YEAR",
}

# Memory in MiB that Fargate gives to a task, by its share of a processor: from, to, in steps of.
FARGATE: Mapping[int, tuple[int, int, int]] = {
    256: (512, 2048, 512),
    512: (1024, 4096, 1024),
    1024: (2048, 8192, 1024),
    2048: (4096, 16384, 1024),
    4096: (8192, 30720, 1024),
    8192: (16384, 61440, 4096),
    16384: (32768, 122880, 8192),
}

# So many tasks can read a shard beside the indexer, as long as less than 0.6 MB a second are written to it.
TASKS_THAT_POLL = 2

# A bucket's name has 63 characters, with what it is for, an account and a region.
LONGEST_PREFIX = 27

# Express brokers are in three zones, and elsewhere each of three copies of a partition is in its own.
ZONES_OF_BROKERS = 3

# What a load balancer is in.
FEWEST_ZONES = 2

DEDICATED = r"[a-z][a-z0-9-]{0,39}=[1-9]\d{0,2}"
CERTIFICATE = re.compile(r"arn:[\w-]+:acm:[\w-]+:\d{12}:certificate/[\w-]+")
LAYER = r"arn:[\w-]+:lambda:[\w-]+:\d{12}:layer:[\w-]+:\d+"
WEB_ACL = re.compile(r"arn:[\w-]+:wafv2:[\w-]+:\d{12}:regional/webacl/[\w-]+/[\w-]+")
KEY = re.compile(r"arn:[\w-]+:kms:[\w-]+:\d{12}:key/[\w-]+")
POLICY = re.compile(r"arn:[\w-]+:iam::(\d{12}|aws):policy/[\w+=,.@/-]+")
PRINCIPAL = re.compile(r"arn:[\w-]+:iam::\d{12}:(role|user)/[\w+=.@/-]+")
CLUSTER = re.compile(r"arn:[\w-]+:kafka:[\w-]+:\d{12}:cluster/[\w-]+/[\w-]+")
SERVER = r"[\w.-]+:\d{1,5}"
MSK_KINDS = ("serverless", "express", "provisioned")
HOST = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Every field is given by `-c field=value`; docs/deploy.md explains each.

    So is what is left to choose of docs/operations.md: `-c NAKADI_MAX_PARTITIONS=32`.
    """

    stage: str = "dev"
    name_prefix: str = "nakadi"

    # How clients reach it.
    domain: str = ""
    certificate_arn: str = ""
    direct_domain: str = ""
    direct_certificate_arn: str = ""
    console: bool = False  # of the files that are built, with NAKADI_CONSOLE_SIGN_IN

    # Who may ask. The defaults let no one in, for no token has this issuer.
    auth_issuer: str = "https://issuer.invalid"
    auth_jwks: str = ""  # the issuer's usual place, if nothing is said
    auth_audience: str = ""
    default_admin: str = ""  # no one, if nothing is said
    authorizer_cache_seconds: int = 60

    # Where events are kept, and for how long.
    storage: str = "kinesis"  # or msk, with
    msk: str = "serverless"  # or express, provisioned, or the ARN of a cluster, with
    msk_servers: str = ""  # its addresses for IAM, and
    msk_security_group: str = ""  # what lets the broker in
    msk_instance: str = ""  # of express.m7g.large or kafka.m7g.large, if nothing is said
    msk_brokers: int = 3
    msk_disk_gb: int = 100  # of each broker of a provisioned cluster
    indexers: int = 1  # that topics are divided among
    stream_mode: str = "provisioned"
    shards: int = 1
    dedicated_streams: str = ""  # names and shards: orders=4,payments=2
    stream_retention_hours: int = 24
    retention_max_days: int = 4
    index_seconds: int = 10
    keep_data: bool = True
    kms_key_arn: str = ""  # keys of AWS's, if nothing is said

    # Where streams are served, and what roles may at most.
    network: str = "public"
    vpc_id: str = ""  # one that exists, with
    vpc_subnets: str = ""  # private subnets: subnet-1,subnet-2
    vpc_zones: str = ""  # and their zones: eu-central-1a,eu-central-1b
    task_tls: bool = False
    permissions_boundary: str = ""

    # How much of everything.
    publish_memory: int = 1024
    function_memory: int = 512
    image: str = ""  # built and pushed by the deployment, if nothing is said
    streaming_cpu: int = 256
    streaming_memory: int = 512
    streaming_min_tasks: int = 1
    streaming_max_tasks: int = 2
    streams_per_task: int = 2000
    fan_out: str = "auto"  # from the third task on, readers of a shard are in each other's way
    asleep: bool = False
    requests_per_second: int = 1000
    requests_burst: int = 2000
    public_requests_per_second: int = 20
    concurrency: int = 0  # how many functions the account may run at once; from 200 on, the vital ones get a part
    web_acl_arn: str = ""
    otel_layers: str = ""  # ARNs of layers that trace functions by OpenTelemetry
    canary_minutes: int = 0  # for so long a tenth of the requests tries a new version; 0 exchanges it at once
    log_days: int = 30
    dashboard: bool = False
    detailed_metrics: bool = False

    # Jobs on the archive.
    analytics: bool = True
    job_workers: int = 2
    compaction_hours: int = 24
    table_minutes: int = 0  # a job runs when an event waits for so long; 0: every compaction_hours, news or not
    table_stream: bool = False  # one that runs all the time
    table_days: int = 0  # for so many days the state at the end of each has a name
    tables: str = "glue"  # or s3tables, a table bucket, whose catalog is its own
    athena: bool = False
    table_readers: str = ""  # ARNs of roles that Lake Formation lets read the tables, with commas between

    # Whom alarms are sent to.
    alarm_email: str = ""

    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for holds, otherwise in self._rules():
            if not holds:
                raise BadContext(otherwise)

    def _rules(self) -> Iterator[tuple[object, str]]:
        yield re.fullmatch(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?", self.stage), "stage is a short word of a-z, 0-9 and -"
        yield (
            re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", self.name_prefix) and len(self.prefix) <= LONGEST_PREFIX,
            f"name_prefix is a word of a-z, 0-9 and -, and with the stage has at most {LONGEST_PREFIX} characters",
        )
        for direct in ("", "direct_"):
            domain, certificate = getattr(self, f"{direct}domain"), getattr(self, f"{direct}certificate_arn")
            yield bool(domain) == bool(certificate), f"{direct}domain and {direct}certificate_arn belong together"
            yield not domain or HOST.fullmatch(domain), f"{direct}domain is the name of a host, like events.example.org"
            yield (
                not certificate or CERTIFICATE.fullmatch(certificate),
                f"{direct}certificate_arn is the ARN of a certificate of AWS Certificate Manager",
            )
        yield (
            not self.direct_domain or self.direct_domain != self.domain,
            "direct_domain is another host than domain",
        )
        yield self.chosen, "settings can be read"
        yield from self._rules_of_data()
        if self.on_msk:
            yield from self._rules_of_msk()
        yield from self._rules_of_networks()
        yield from self._rules_of_access()
        yield from self._rules_of_sizes()

    def _rules_of_data(self) -> Iterator[tuple[object, str]]:
        yield self.storage in {"kinesis", "msk"}, "storage is kinesis or msk"
        yield self.stream_mode in {"provisioned", "on-demand"}, "stream_mode is provisioned or on-demand"
        yield 1 <= self.shards <= 1000, "shards is from 1 to 1000"
        yield (
            re.fullmatch(rf"({DEDICATED}(,{DEDICATED})*)?", self.dedicated_streams),
            "dedicated_streams is like orders=4,payments=2",
        )
        yield 24 <= self.stream_retention_hours <= 8760, "stream_retention_hours is from 24 to 8760"
        yield 0 <= self.index_seconds <= 300, "index_seconds is from 0 to 300"
        yield 1 <= self.retention_max_days <= 3650, "retention_max_days is from 1 to 3650"

        yield (
            not self.kms_key_arn or KEY.fullmatch(self.kms_key_arn),
            "kms_key_arn is the ARN of a key, not of an alias",
        )

    def _rules_of_msk(self) -> Iterator[tuple[object, str]]:
        existing = CLUSTER.fullmatch(self.msk)
        yield existing or self.msk in MSK_KINDS, f"msk is {', '.join(MSK_KINDS)}, or the ARN of a cluster"
        yield (
            bool(existing) == bool(self.msk_servers) == bool(self.msk_security_group),
            "msk_servers and msk_security_group belong to the ARN of a cluster",
        )
        yield (
            not existing or re.fullmatch(rf"{SERVER}(,{SERVER})*", self.msk_servers),
            "msk_servers are addresses like b-1.example.kafka.eu-central-1.amazonaws.com:9098, with commas between",
        )
        yield (
            not existing or re.fullmatch(r"sg-[0-9a-f]+", self.msk_security_group),
            "msk_security_group is like sg-0123456789abcdef0",
        )
        yield not existing or self.vpc_id, "the ARN of a cluster needs vpc_id, the network that the cluster is in"
        yield (
            self.msk not in {"express", "provisioned"} or len(set(_listed(self.vpc_zones))) == ZONES_OF_BROKERS,
            f"msk={self.msk} needs vpc_id with subnets in three zones, one for each copy",
        )
        yield (
            not self.msk_instance or re.fullmatch(r"(express|kafka)\.[a-z0-9]+\.[a-z0-9]+", self.msk_instance),
            "msk_instance is like express.m7g.large or kafka.m7g.large",
        )
        yield (
            not self.msk_instance or self.msk_instance.startswith("express.") == (self.msk == "express"),
            "msk_instance begins with express. for msk=express, and with kafka. for msk=provisioned",
        )
        yield (
            self.msk_brokers in range(ZONES_OF_BROKERS, 91, ZONES_OF_BROKERS),
            "msk_brokers is a multiple of 3, up to 90",
        )
        yield 1 <= self.msk_disk_gb <= 16384, "msk_disk_gb is from 1 to 16384"
        yield 1 <= self.indexers <= 5, "indexers is from 1 to 5"
        yield (
            not self.dedicated_streams,
            "dedicated_streams are of Kinesis",
        )
        yield self.fan_out != "true", "fan_out is of Kinesis"
        yield (
            not self.table_minutes or self.vpc_id,
            "table_minutes with storage=msk needs vpc_id: the network that is made has no way to Glue",
        )

    def _rules_of_networks(self) -> Iterator[tuple[object, str]]:
        yield self.network in {"public", "private"}, "network is public or private"
        ids, zones = _listed(self.vpc_subnets), _listed(self.vpc_zones)
        yield (
            not self.direct_domain or (self.network == "public" and not self.vpc_id),
            "direct_domain needs network=public and no vpc_id, since its load balancer is in public subnets",
        )
        told = [bool(each) for each in (self.vpc_id, ids, zones)]
        yield all(told) or not any(told), "vpc_id, vpc_subnets and vpc_zones belong together"
        yield not self.vpc_id or re.fullmatch(r"vpc-[0-9a-f]+", self.vpc_id), "vpc_id is like vpc-0123456789abcdef0"
        yield all(re.fullmatch(r"subnet-[0-9a-f]+", each) for each in ids), "vpc_subnets are like subnet-1,subnet-2"
        yield len(ids) == len(zones) and len(ids) == len(set(ids)), "vpc_zones has a zone for each of vpc_subnets"
        yield not ids or len(set(zones)) >= FEWEST_ZONES, "vpc_subnets are in at least two zones"
        yield (
            not self.permissions_boundary or POLICY.fullmatch(self.permissions_boundary),
            "permissions_boundary is the ARN of a managed policy",
        )

    def _rules_of_access(self) -> Iterator[tuple[object, str]]:
        yield self.auth_issuer.startswith("https://"), "auth_issuer is an https:// URL"
        yield not self.auth_jwks or self.auth_jwks.startswith("https://"), "auth_jwks is an https:// URL"
        yield 0 <= self.authorizer_cache_seconds <= 3600, "authorizer_cache_seconds is from 0 to 3600"
        yield (
            re.fullmatch(rf"({LAYER}(,{LAYER}){{0,2}})?", self.otel_layers),
            "otel_layers are at most three ARNs of versions of Lambda layers",
        )
        yield (
            not self.web_acl_arn or WEB_ACL.fullmatch(self.web_acl_arn),
            "web_acl_arn is the ARN of a regional web ACL of AWS WAF",
        )
        yield not self.alarm_email or "@" in self.alarm_email, "alarm_email is an address of e-mail"
        pairs = [pair for pair in self.default_admin.split(",") if pair.strip()]
        yield all(re.fullmatch(r"\s*\S+=\S+\s*", pair) for pair in pairs), "default_admin is like service=nakadi_admin"

    def _rules_of_sizes(self) -> Iterator[tuple[object, str]]:
        for name in ("publish_memory", "function_memory"):
            yield 128 <= getattr(self, name) <= 10240, f"{name} is from 128 to 10240, in MiB"
        yield self.streaming_cpu in FARGATE, f"streaming_cpu is one of {', '.join(map(str, FARGATE))}"
        least, most, step = FARGATE[self.streaming_cpu]
        yield (
            self.streaming_memory in range(least, most + 1, step),
            f"streaming_memory is from {least} to {most} in steps of {step}, with streaming_cpu={self.streaming_cpu}",
        )
        yield 1 <= self.streaming_min_tasks <= self.streaming_max_tasks, "streaming_min_tasks <= streaming_max_tasks"
        yield self.fan_out in {"auto", "true", "false"}, "fan_out is auto, true or false"
        yield (
            self.concurrency == 0 or self.concurrency >= 200,
            "concurrency is 0, which reserves nothing, or at least 200",
        )
        yield self.canary_minutes in {0, 5, 10, 15, 30}, "canary_minutes is 0, 5, 10, 15 or 30"
        for name in ("streams_per_task", "requests_per_second", "requests_burst", "public_requests_per_second"):
            yield getattr(self, name) >= 1, f"{name} is at least 1"
        yield (
            all(PRINCIPAL.fullmatch(each) for each in self.readers),
            "table_readers are ARNs of IAM roles or users, with commas between",
        )
        yield 0 <= self.table_days <= 3650, "table_days is from 0 to 3650"
        yield self.tables in {"glue", "s3tables"}, "tables is glue or s3tables"
        yield (
            not self.readers or self.tables == "glue",
            "table_readers are of Glue's catalog; who reads a table bucket is said by its policy",
        )
        yield self.log_days in LOG_DAYS, f"log_days is one of {', '.join(map(str, LOG_DAYS))}"
        yield 2 <= self.job_workers <= 100, "job_workers is from 2 to 100"
        yield self.compaction_hours in {1, 2, 3, 4, 6, 8, 12, 24}, "compaction_hours is one of 1, 2, 3, 4, 6, 8, 12, 24"
        yield self.table_minutes in {0, *range(5, 1441)}, "table_minutes is 0, or from 5 to 1440"
        yield (
            not self.table_stream or self.table_minutes > 0,
            "table_stream needs table_minutes: the job is started when an event waits for so long, and then runs",
        )

    @property
    def fans_out(self) -> bool:
        """Whether shards are pushed to a consumer of each task."""
        many = self.fan_out == "auto" and self.streaming_max_tasks > TASKS_THAT_POLL
        return not self.on_msk and (self.fan_out == "true" or many)

    @property
    def on_msk(self) -> bool:
        return self.storage == "msk"

    @property
    def has_table_bucket(self) -> bool:
        return self.analytics and self.tables == "s3tables"

    @property
    def table_job(self) -> str:
        """The job that housekeeping starts when events wait for their tables; empty where a schedule does."""
        if not (self.analytics and self.table_minutes):
            return ""
        return f"{self.prefix}-{'follow' if self.table_stream else 'compaction'}"

    @property
    def late_seconds(self) -> int:
        """When tables are late: after twice the time that they may take, and an hour for the run itself."""
        return 2 * self.table_minutes * 60 + 3600

    @property
    def prefix(self) -> str:
        """What everything with a name of its own begins with."""
        return f"{self.name_prefix}-{self.stage}"

    @property
    def subnets(self) -> Mapping[str, str]:
        """Subnets of a network that exists, with their zones."""
        return dict(zip(_listed(self.vpc_subnets), _listed(self.vpc_zones), strict=True))

    @property
    def readers(self) -> tuple[str, ...]:
        """Who may read the tables."""
        return tuple(each.strip() for each in self.table_readers.split(",") if each.strip())

    @property
    def streams(self) -> Mapping[str, int]:
        """Shards of every stream by its name: the one that event types share, and those that some have of their own."""
        if self.on_msk:
            return {}
        dedicated = (each.split("=") for each in self.dedicated_streams.split(",") if each)
        return {self.prefix: self.shards, **{f"{self.prefix}-{name}": int(shards) for name, shards in dedicated}}

    @property
    def jwks(self) -> str:
        return self.auth_jwks or f"{self.auth_issuer.rstrip('/')}/.well-known/jwks.json"

    @property
    def chosen(self) -> Settings:
        """The settings of the broker as far as they are chosen here."""
        try:
            return Settings.from_env(self.settings)
        except BadSetting as error:
            raise BadContext(str(error)) from error

    @classmethod
    def of(cls, node: Node) -> Context:
        given = {name: value for name, value in node.get_all_context().items() if not _is_the_cdks(name)}
        settings = {name: str(value) for name, value in given.items() if name.startswith(SETTING)}
        kinds = {each.name: str(each.type) for each in fields(cls) if each.name != "settings"}
        for name in given:
            if name not in kinds and name not in CHOICES:
                raise BadContext(f"{name} means nothing here.{_perhaps(name, [*kinds, *CHOICES])}")
        return cls(
            **{name: _read(name, kinds[name], given[name]) for name in given if name in kinds}, settings=settings
        )


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _is_the_cdks(name: str) -> bool:
    """Its own entries have colons or begin with a package's name, but for two of its command line."""
    return ":" in name or name.startswith("@") or name in {"cli-telemetry", "acknowledged-issue-numbers"}


def _perhaps(name: str, known: Iterable[str]) -> str:
    return "".join(f" Perhaps {close} is meant?" for close in get_close_matches(name, known, n=1))


def _truth(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).lower()]


READERS: Mapping[str, Callable[[Any], Any]] = {"str": str, "int": int, "bool": _truth}
MEANT = {"str": "a text", "int": "a whole number", "bool": "true or false"}


def _read(name: str, kind: str, value: Any) -> Any:
    try:
        return READERS[kind](value)
    except (ValueError, KeyError, TypeError) as error:
        raise BadContext(f"{name} is {MEANT[kind]}, and not {value!r}") from error
