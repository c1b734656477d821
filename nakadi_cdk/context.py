"""`Context`, the configuration of a deployment, read from the CDK's context and checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from nakadi.app.settings import Settings
from nakadi.model.outcomes import BadSetting

if TYPE_CHECKING:
    from constructs import Node  # an import at run time would start node


class BadContext(Exception):
    """Raised for a value that `Context` does not allow. The message names the value."""


# The deployment fixes these settings itself: the locations of stores, the issuer, and the limits of the gateway.
SETTING_PREFIX = "NAKADI_"
FIXED_SETTINGS = {
    *("registry", "event_log", "coordination", "log_index", "archive", "archiver"),
    *("auth", "auth_jwks", "auth_issuer", "auth_audience", "default_admin"),
    *("retention_max_ms", "longest_stream_seconds", "longest_silence_seconds", "longest_wait_seconds"),
    *("table_job", "table_minutes", "sink_key", "sink_targets"),
    *("queries", "query_megabytes", "tables", "tables_database"),
}
SETTING_NAMES = {f"{SETTING_PREFIX}{each.upper()}" for each in Settings.__struct_fields__ if each not in FIXED_SETTINGS}

# The CDK's names for the days that CloudWatch can keep logs.
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

# The memory in MiB that Fargate offers for each processor share: smallest, largest, step.
FARGATE_MEMORY: Mapping[int, tuple[int, int, int]] = {
    256: (512, 2048, 512),
    512: (1024, 4096, 1024),
    1024: (2048, 8192, 1024),
    2048: (4096, 16384, 1024),
    4096: (8192, 30720, 1024),
    8192: (16384, 61440, 4096),
    16384: (32768, 122880, 8192),
}

# This many tasks can poll a shard beside the indexer if writers add less than 0.6 MB a second.
MAX_POLLING_TASKS = 2

# A bucket name has at most 63 characters, including its purpose, the account and the region.
MAX_PREFIX_LENGTH = 27

# Express brokers span three zones; elsewhere each of the three replicas of a partition has its own zone.
BROKER_ZONES = 3

# A load balancer spans at least two zones.
MIN_ZONES = 2

DEDICATED_STREAM = r"[a-z][a-z0-9-]{0,39}=[1-9]\d{0,2}"
CERTIFICATE_ARN = re.compile(r"arn:[\w-]+:acm:[\w-]+:\d{12}:certificate/[\w-]+")
LAYER_ARN = r"arn:[\w-]+:lambda:[\w-]+:\d{12}:layer:[\w-]+:\d+"
WEB_ACL_ARN = re.compile(r"arn:[\w-]+:wafv2:[\w-]+:\d{12}:regional/webacl/[\w-]+/[\w-]+")
KEY_ARN = re.compile(r"arn:[\w-]+:kms:[\w-]+:\d{12}:key/[\w-]+")
BUCKET_ARN = re.compile(r"arn:aws[a-z-]*:s3:::[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
POLICY_ARN = re.compile(r"arn:[\w-]+:iam::(\d{12}|aws):policy/[\w+=,.@/-]+")
PRINCIPAL_ARN = re.compile(r"arn:[\w-]+:iam::\d{12}:(role|user)/[\w+=.@/-]+")
CLUSTER_ARN = re.compile(r"arn:[\w-]+:kafka:[\w-]+:\d{12}:cluster/[\w-]+/[\w-]+")
SERVER_ADDRESS = r"[\w.-]+:\d{1,5}"
ECR_IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[\w-]+)\.amazonaws\.com/(?P<repository>[\w./-]+)[:@](?P<tag>[\w.:-]+)"
)
MSK_KINDS = ("serverless", "express", "provisioned")
SINK_TARGET = re.compile(r"arn:[\w-]+:(?P<service>lambda|sqs|sns|events):[\w-]+:(\d{12}):[\w.:/$*-]+")
HOST_NAME = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The configuration of a deployment, as properties of the constructs.

    The CDK app of this project reads it from the command line: `-c shards=4 -c NAKADI_MAX_PARTITIONS=32`.
    Other apps pass it to the constructs:

        Context(stage="live", auth_issuer="https://issuer.example.org", shards=4)

    Raises `BadContext` if a value is not allowed; the message names the value.
    """

    stage: str = "dev"
    """The name of this deployment. Every resource name contains it, so one account can hold several stages.

    Allowed: up to 20 characters of a-z, 0-9 and hyphens; the first is a letter, the last no hyphen. Default: "dev".
    """

    name_prefix: str = "nakadi"
    """The first part of every resource name, before the stage.

    Allowed: a-z, 0-9 and hyphens; with a hyphen and the stage at most 27 characters. Default: "nakadi".
    """

    domain: str = ""
    """The host name of the API. Needs `certificate_arn`.

    Default: "", an address of API Gateway, below `/api`.
    """

    certificate_arn: str = ""
    """The ARN of the certificate for `domain`, in the region of the deployment.

    Default: "", no certificate.
    """

    direct_domain: str = ""
    """A second host name at which a load balancer, instead of the gateway, serves events, streams and commits.

    Needs `direct_certificate_arn`, `network="public"` and no `vpc_id`. Default: "", no such load balancer.
    """

    direct_certificate_arn: str = ""
    """The ARN of the certificate for `direct_domain`, in the region of the deployment.

    Default: "", no certificate.
    """

    console: bool = False
    """Whether the API serves the console below `/console`.

    Default: False.
    """

    auth_issuer: str = "https://issuer.invalid"
    """The issuer of the tokens that the broker accepts.

    Allowed: an https:// URL. Default: "https://issuer.invalid", with which no token is valid.
    """

    auth_jwks: str = ""
    """The URL of the issuer's key set.

    Allowed: an https:// URL. Default: "", `/.well-known/jwks.json` below the issuer.
    """

    auth_audience: str = ""
    """The audience that a token must name.

    Default: "", any audience.
    """

    default_admin: str = ""
    """Attributes that are always administrators, such as "user=ann,service=ops".

    Default: "", no administrator.
    """

    authorizer_cache_seconds: int = 60
    """How long the gateway reuses the authorizer's decision on a token, even if the token expires meanwhile.

    Allowed: 0 to 3600. Default: 60.
    """

    storage: str = "kinesis"
    """The service that stores events.

    Allowed: "kinesis", "msk". Default: "kinesis".
    """

    msk: str = "serverless"
    """The MSK cluster: the kind to create together with the data, or the ARN of an existing cluster.

    An ARN also needs `msk_servers`, `msk_security_group` and `vpc_id`.
    Allowed: "serverless", "express", "provisioned", an ARN. Default: "serverless".
    """

    msk_servers: str = ""
    """The bootstrap addresses of an existing cluster for IAM, separated by commas.

    Default: "", looked up after the cluster has been created.
    """

    msk_security_group: str = ""
    """The security group of an existing cluster's servers, which gets a rule that admits the broker.

    Default: "", a new security group.
    """

    msk_instance: str = ""
    """The instance type of the cluster's brokers.

    Allowed: types that begin with "express." for `msk="express"`, with "kafka." for `msk="provisioned"`.
    Default: "", express.m7g.large or kafka.m7g.large.
    """

    msk_brokers: int = 3
    """The number of brokers of an express or provisioned cluster.

    Allowed: a multiple of 3, up to 90. Default: 3.
    """

    msk_disk_gb: int = 100
    """The disk of each broker of a provisioned cluster, in GB.

    Allowed: 1 to 16384. Default: 100.
    """

    indexers: int = 1
    """The number of log indexers that share the topics of MSK.

    Allowed: 1 to 5. Default: 1.
    """

    stream_mode: str = "provisioned"
    """The capacity mode of the Kinesis streams: shards at an hourly price, or streams that scale by themselves.

    Allowed: "provisioned", "on-demand". Default: "provisioned".
    """

    shards: int = 1
    """The shards of the stream that event types share; each takes 1 MB a second.

    Allowed: 1 to 1000. Default: 1.
    """

    dedicated_streams: str = ""
    """Additional streams with their shards, such as "orders=4,payments=2". A storage names such a stream.

    Default: "", only the shared stream.
    """

    stream_retention_hours: int = 24
    """How long Kinesis keeps events. The archive keeps them for the retention time of their event type.

    Allowed: 24 to 8760. Default: 24.
    """

    retention_max_days: int = 4
    """The longest retention time that an event type may ask for.

    Allowed: 1 to 3650. Default: 4.
    """

    index_seconds: int = 10
    """How long the log indexer collects events before it writes to the index.

    Allowed: 0 to 300. Default: 10.
    """

    keep_data: bool = True
    """Whether tables, streams and buckets outlive their stack.

    Default: True.
    """

    recovery_days: int = 35
    """For how many days DynamoDB can restore the tables to any second.

    Allowed: 0 for not at all, up to 35. Default: 35.
    """

    version_days: int = 0
    """How long S3 keeps objects of the archive and the tables after they were replaced or removed, in days.

    Allowed: 0 for not at all, up to 365. Default: 0.
    """

    archive_replica: str = ""
    """The ARN of a bucket in another region or account, to which S3 copies each new object of the archive.

    It needs `version_days`, and a bucket that keeps versions. Default: "", no copies.
    """

    kms_key_arn: str = ""
    """The ARN of the key that encrypts tables, streams and buckets. An alias is not allowed.

    Default: "", keys that AWS owns or manages.
    """

    network: str = "public"
    """The network of the streaming tasks: public addresses, or no way out except VPC endpoints.

    Allowed: "public", "private". Default: "public".
    """

    vpc_id: str = ""
    """The id of an existing VPC for the streaming service. Needs `vpc_subnets` and `vpc_zones`.

    Default: "", a new VPC.
    """

    vpc_subnets: str = ""
    """The ids of private subnets of `vpc_id` in at least two zones, such as "subnet-0a1b,subnet-0c2d".

    Default: "", subnets of the new VPC.
    """

    vpc_zones: str = ""
    """The zones of `vpc_subnets` in the same order, such as "eu-central-1a,eu-central-1b".

    Default: "", zones of the new VPC.
    """

    task_tls: bool = False
    """Whether the traffic between the load balancers and the tasks is encrypted.

    Default: False.
    """

    permissions_boundary: str = ""
    """The ARN of a managed policy that limits every role.

    Default: "", no limit.
    """

    publish_memory: int = 1024
    """The memory of the functions that publish and that index the log, in MiB, which determines their processor share.

    Allowed: 128 to 10240. Default: 1024.
    """

    function_memory: int = 512
    """The memory of all other functions, in MiB.

    Allowed: 128 to 10240. Default: 512.
    """

    image: str = ""
    """An existing image of the streaming service.

    Default: "", the deployment builds and pushes one.
    """

    streaming_cpu: int = 256
    """The processor share of a streaming task, in 1/1024.

    Allowed: 256, 512, 1024, 2048, 4096, 8192, 16384. Default: 256.
    """

    streaming_memory: int = 512
    """The memory of a streaming task, in MiB.

    Allowed: the sizes that Fargate offers for `streaming_cpu`. Default: 512.
    """

    streaming_min_tasks: int = 1
    """The smallest number of streaming tasks.

    Allowed: 1 or more. Default: 1.
    """

    streaming_max_tasks: int = 2
    """The largest number of streaming tasks. With more than two, see `fan_out`.

    Allowed: `streaming_min_tasks` or more. Default: 2.
    """

    streams_per_task: int = 2000
    """The number of open streams per task at which another task starts.

    Allowed: 1 or more. Default: 2000.
    """

    fan_out: str = "auto"
    """Whether Kinesis pushes events to a registered consumer of each task ("true") or tasks poll the shards ("false").

    "auto" pushes if more than two tasks may run, since tasks that poll share the read limits of a shard.
    Allowed: "auto", "true", "false"; not "true" with MSK. Default: "auto".
    """

    asleep: bool = False
    """Whether to leave out the streaming service, its load balancer and its link.

    Default: False.
    """

    sinks: bool = False
    """Whether subscriptions can have sinks, to which the streaming tasks deliver. A key in KMS seals their secrets.

    With MSK, it needs `vpc_id`. Default: False.
    """

    sink_targets: str = ""
    """The ARNs of functions, queues, topics and event buses that sinks may deliver to, separated by commas.

    The role of the tasks gets these and no others; `*` stands for any text. Needs `sinks`.
    Default: "", sinks deliver over HTTPS and to event types only.
    """

    requests_per_second: int = 1000
    """The rate limit of the API for all clients together.

    Allowed: 1 or more. Default: 1000.
    """

    requests_burst: int = 2000
    """The burst limit of the API for all clients together.

    Allowed: 1 or more. Default: 2000.
    """

    public_requests_per_second: int = 20
    """The rate limit of each page that needs no token.

    Allowed: 1 or more. Default: 20.
    """

    concurrency: int = 0
    """The account's limit of concurrent functions. The authorizer, the log indexer and publishing reserve parts of it.

    Allowed: 0 for no reservations, or 200 or more. Default: 0.
    """

    web_acl_arn: str = ""
    """The ARN of a regional web ACL of AWS WAF that checks requests first.

    Default: "", no web ACL.
    """

    otel_layers: str = ""
    """The ARNs of Lambda layers that trace functions with OpenTelemetry, separated by commas.

    Allowed: up to three ARNs of layer versions. Default: "", the traces of Lambda and API Gateway only.
    """

    canary_minutes: int = 0
    """How long only a tenth of the requests goes to a new version of a function before all requests do.

    Allowed: 0 for an immediate switch, 5, 10, 15, 30. Default: 0.
    """

    log_days: int = 30
    """How long CloudWatch keeps logs, in days.

    Allowed: 1, 3, 7, 14, 30, 60, 90, 180, 365. Default: 30.
    """

    more_alarms: bool = False
    """Whether to create further alarms, for a slow registry, refused publishers, missed objectives and an archive that
    is damaged or cannot be read.

    They cost $0.60 a month. Default: False.
    """

    dashboard: bool = False
    """Whether to create a CloudWatch dashboard of alarms and metrics.

    Default: False.
    """

    detailed_metrics: bool = False
    """Whether API Gateway publishes metrics per method, which AWS charges for.

    Default: False.
    """

    analytics: bool = True
    """Whether to create the jobs on the archive.

    Default: True.
    """

    job_workers: int = 2
    """The largest number of workers of a job.

    Allowed: 2 to 100. Default: 2.
    """

    compaction_hours: int = 24
    """How often the compaction job updates tables. `table_minutes` takes precedence.

    Allowed: 1, 2, 3, 4, 6, 8, 12, 24. Default: 24.
    """

    table_minutes: int = 0
    """How long an archived event may wait before the table job starts, which then runs only if events wait.

    Allowed: 0 for every `compaction_hours`, or 5 to 1440. Default: 0.
    """

    table_stream: bool = False
    """Whether the table job keeps running once it has started. Needs `table_minutes`.

    Default: False.
    """

    table_days: int = 0
    """For how many days queries can name the state of a table at the end of each day.

    Allowed: 0 to 3650. Default: 0.
    """

    tables: str = "glue"
    """The catalog of the tables: Glue's with a bucket of S3, or a table bucket of S3 Tables.

    Allowed: "glue", "s3tables". Default: "glue".
    """

    athena: bool = False
    """Whether to create an Athena workgroup for queries of the tables.

    Default: False.
    """

    table_readers: str = ""
    """The ARNs of roles and users that Lake Formation lets read the tables, separated by commas. Needs `tables="glue"`.

    Default: "", no grants.
    """

    queries: bool = False
    """Whether the API answers queries with SQL, in a function of their own, which a container image contains.

    It needs `analytics` and `tables="glue"`. Default: False.
    """

    queries_per_second: int = 2
    """The rate limit of queries for all clients together.

    Allowed: 1 or more. Default: 2.
    """

    query_memory: int = 2048
    """The memory of the function that answers a query, in MiB. The query gets 1024 less.

    Allowed: 1536 to 10240. Default: 2048.
    """

    query_image: str = ""
    """An existing image of the queries' function in a repository of ECR, in the region of the deployment.

    Default: "", the deployment builds and pushes one.
    """

    alarm_email: str = ""
    """The e-mail address that alarms are sent to.

    Default: "", nobody.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the broker, such as {"NAKADI_MAX_PARTITIONS": "32"}; docs/settings.md lists them.

    Allowed: every setting that the deployment does not fix itself. Default: {}.
    """

    def __post_init__(self) -> None:
        for valid, message in self._rules():
            if not valid:
                raise BadContext(message)

    def _rules(self) -> Iterator[tuple[object, str]]:
        yield re.fullmatch(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?", self.stage), "stage is a short word of a-z, 0-9 and -"
        yield (
            re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", self.name_prefix) and len(self.prefix) <= MAX_PREFIX_LENGTH,
            f"name_prefix is a word of a-z, 0-9 and -, and with the stage has at most {MAX_PREFIX_LENGTH} characters",
        )
        for direct in ("", "direct_"):
            domain, certificate = getattr(self, f"{direct}domain"), getattr(self, f"{direct}certificate_arn")
            yield bool(domain) == bool(certificate), f"{direct}domain and {direct}certificate_arn belong together"
            yield (
                not domain or HOST_NAME.fullmatch(domain),
                f"{direct}domain is the name of a host, like events.example.org",
            )
            yield (
                not certificate or CERTIFICATE_ARN.fullmatch(certificate),
                f"{direct}certificate_arn is the ARN of a certificate of AWS Certificate Manager",
            )
        yield (
            not self.direct_domain or self.direct_domain != self.domain,
            "direct_domain is another host than domain",
        )
        yield self.chosen, "settings can be read"
        yield from self._data_rules()
        if self.on_msk:
            yield from self._msk_rules()
        yield from self._network_rules()
        yield from self._access_rules()
        yield from self._size_rules()

    def _data_rules(self) -> Iterator[tuple[object, str]]:
        yield self.storage in {"kinesis", "msk"}, "storage is kinesis or msk"
        yield self.stream_mode in {"provisioned", "on-demand"}, "stream_mode is provisioned or on-demand"
        yield 1 <= self.shards <= 1000, "shards is from 1 to 1000"
        yield (
            re.fullmatch(rf"({DEDICATED_STREAM}(,{DEDICATED_STREAM})*)?", self.dedicated_streams),
            "dedicated_streams is like orders=4,payments=2",
        )
        yield 24 <= self.stream_retention_hours <= 8760, "stream_retention_hours is from 24 to 8760"
        yield 0 <= self.index_seconds <= 300, "index_seconds is from 0 to 300"
        yield 1 <= self.retention_max_days <= 3650, "retention_max_days is from 1 to 3650"
        yield 0 <= self.recovery_days <= 35, "recovery_days is from 0 to 35"
        yield 0 <= self.version_days <= 365, "version_days is from 0 to 365"
        yield (
            not self.archive_replica or BUCKET_ARN.fullmatch(self.archive_replica),
            "archive_replica is the ARN of a bucket, like arn:aws:s3:::copies",
        )
        yield not self.archive_replica or self.version_days, "archive_replica needs version_days: S3 copies versions"
        yield (
            not (self.archive_replica and self.kms_key_arn),
            "archive_replica needs the keys of AWS, without kms_key_arn: a key is of one region",
        )

        yield (
            not self.kms_key_arn or KEY_ARN.fullmatch(self.kms_key_arn),
            "kms_key_arn is the ARN of a key, not of an alias",
        )

    def _msk_rules(self) -> Iterator[tuple[object, str]]:
        existing = CLUSTER_ARN.fullmatch(self.msk)
        yield existing or self.msk in MSK_KINDS, f"msk is {', '.join(MSK_KINDS)}, or the ARN of a cluster"
        yield (
            bool(existing) == bool(self.msk_servers) == bool(self.msk_security_group),
            "msk_servers and msk_security_group belong to the ARN of a cluster",
        )
        yield (
            not existing or re.fullmatch(rf"{SERVER_ADDRESS}(,{SERVER_ADDRESS})*", self.msk_servers),
            "msk_servers are addresses like b-1.example.kafka.eu-central-1.amazonaws.com:9098, with commas between",
        )
        yield (
            not existing or re.fullmatch(r"sg-[0-9a-f]+", self.msk_security_group),
            "msk_security_group is like sg-0123456789abcdef0",
        )
        yield not existing or self.vpc_id, "the ARN of a cluster needs vpc_id, the network that the cluster is in"
        yield (
            self.msk not in {"express", "provisioned"} or len(set(_split_list(self.vpc_zones))) == BROKER_ZONES,
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
            self.msk_brokers in range(BROKER_ZONES, 91, BROKER_ZONES),
            "msk_brokers is a multiple of 3, up to 90",
        )
        yield 1 <= self.msk_disk_gb <= 16384, "msk_disk_gb is from 1 to 16384"
        yield 1 <= self.indexers <= 5, "indexers is from 1 to 5"
        yield (
            not self.dedicated_streams,
            "dedicated_streams needs storage=kinesis",
        )
        yield self.fan_out != "true", "fan_out needs storage=kinesis"
        yield (
            not self.table_minutes or self.vpc_id,
            "table_minutes with storage=msk needs vpc_id: the network that is made has no way to Glue",
        )

    def _network_rules(self) -> Iterator[tuple[object, str]]:
        yield self.network in {"public", "private"}, "network is public or private"
        ids, zones = _split_list(self.vpc_subnets), _split_list(self.vpc_zones)
        yield (
            not self.direct_domain or (self.network == "public" and not self.vpc_id),
            "direct_domain needs network=public and no vpc_id, since its load balancer is in public subnets",
        )
        given = [bool(each) for each in (self.vpc_id, ids, zones)]
        yield all(given) or not any(given), "vpc_id, vpc_subnets and vpc_zones belong together"
        yield not self.vpc_id or re.fullmatch(r"vpc-[0-9a-f]+", self.vpc_id), "vpc_id is like vpc-0123456789abcdef0"
        yield all(re.fullmatch(r"subnet-[0-9a-f]+", each) for each in ids), "vpc_subnets are like subnet-1,subnet-2"
        yield len(ids) == len(zones) and len(ids) == len(set(ids)), "vpc_zones has a zone for each of vpc_subnets"
        yield not ids or len(set(zones)) >= MIN_ZONES, "vpc_subnets are in at least two zones"
        yield (
            not self.permissions_boundary or POLICY_ARN.fullmatch(self.permissions_boundary),
            "permissions_boundary is the ARN of a managed policy",
        )

    def _access_rules(self) -> Iterator[tuple[object, str]]:
        yield self.auth_issuer.startswith("https://"), "auth_issuer is an https:// URL"
        yield not self.auth_jwks or self.auth_jwks.startswith("https://"), "auth_jwks is an https:// URL"
        yield 0 <= self.authorizer_cache_seconds <= 3600, "authorizer_cache_seconds is from 0 to 3600"
        yield (
            re.fullmatch(rf"({LAYER_ARN}(,{LAYER_ARN}){{0,2}})?", self.otel_layers),
            "otel_layers are at most three ARNs of versions of Lambda layers",
        )
        yield (
            not self.web_acl_arn or WEB_ACL_ARN.fullmatch(self.web_acl_arn),
            "web_acl_arn is the ARN of a regional web ACL of AWS WAF",
        )
        yield not self.alarm_email or "@" in self.alarm_email, "alarm_email is an address of e-mail"
        pairs = [pair for pair in self.default_admin.split(",") if pair.strip()]
        yield all(re.fullmatch(r"\s*\S+=\S+\s*", pair) for pair in pairs), "default_admin is like service=nakadi_admin"

    def _size_rules(self) -> Iterator[tuple[object, str]]:
        for name in ("publish_memory", "function_memory"):
            yield 128 <= getattr(self, name) <= 10240, f"{name} is from 128 to 10240, in MiB"
        yield self.streaming_cpu in FARGATE_MEMORY, f"streaming_cpu is one of {', '.join(map(str, FARGATE_MEMORY))}"
        least, most, step = FARGATE_MEMORY[self.streaming_cpu]
        yield (
            self.streaming_memory in range(least, most + 1, step),
            f"streaming_memory is from {least} to {most} in steps of {step}, with streaming_cpu={self.streaming_cpu}",
        )
        yield 1 <= self.streaming_min_tasks <= self.streaming_max_tasks, "streaming_min_tasks <= streaming_max_tasks"
        targets = _split_list(self.sink_targets)
        yield (
            all(SINK_TARGET.fullmatch(each) for each in targets),
            "sink_targets are ARNs of functions, queues, topics or event buses, with a region and an account",
        )
        yield not targets or self.sinks, "sink_targets needs sinks"
        yield (
            not (self.sinks and self.on_msk) or self.vpc_id,
            "sinks with storage=msk needs vpc_id: the network that is made has no way to KMS",
        )
        yield self.fan_out in {"auto", "true", "false"}, "fan_out is auto, true or false"
        yield (
            self.concurrency == 0 or self.concurrency >= 200,
            "concurrency is 0, which reserves nothing, or at least 200",
        )
        yield self.canary_minutes in {0, 5, 10, 15, 30}, "canary_minutes is 0, 5, 10, 15 or 30"
        for name in (
            *("streams_per_task", "requests_per_second", "requests_burst", "public_requests_per_second"),
            "queries_per_second",
        ):
            yield getattr(self, name) >= 1, f"{name} is at least 1"
        yield (
            all(PRINCIPAL_ARN.fullmatch(each) for each in self.readers),
            "table_readers are ARNs of IAM roles or users, with commas between",
        )
        yield 0 <= self.table_days <= 3650, "table_days is from 0 to 3650"
        yield self.tables in {"glue", "s3tables"}, "tables is glue or s3tables"
        yield (
            not self.readers or self.tables == "glue",
            "table_readers needs tables=glue; the policy of a table bucket decides who reads it",
        )
        yield (
            not self.queries or (self.analytics and self.tables == "glue"),
            "queries needs analytics and tables=glue, whose tables they read",
        )
        yield 1536 <= self.query_memory <= 10240, "query_memory is from 1536 to 10240, in MiB"
        yield (
            not self.query_image or ECR_IMAGE.fullmatch(self.query_image),
            "query_image is an image in ECR, like 123456789012.dkr.ecr.eu-central-1.amazonaws.com/queries:1",
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
        """Whether Kinesis pushes shards to a registered consumer of each task."""
        has_many_tasks = self.fan_out == "auto" and self.streaming_max_tasks > MAX_POLLING_TASKS
        return not self.on_msk and (self.fan_out == "true" or has_many_tasks)

    @property
    def targets_by_service(self) -> Mapping[str, Sequence[str]]:
        """The ARNs of `sink_targets` by their services."""
        found: dict[str, list[str]] = {}
        for each in _split_list(self.sink_targets):
            found.setdefault(each.split(":")[2], []).append(each)
        return found

    @property
    def on_msk(self) -> bool:
        """Whether MSK stores the events."""
        return self.storage == "msk"

    @property
    def has_table_bucket(self) -> bool:
        """Whether the tables are in an S3 Tables bucket."""
        return self.analytics and self.tables == "s3tables"

    @property
    def table_job(self) -> str:
        """The name of the job that housekeeping starts when events wait for their tables; empty if a schedule does."""
        if not (self.analytics and self.table_minutes):
            return ""
        return f"{self.prefix}-{'follow' if self.table_stream else 'compaction'}"

    @property
    def late_seconds(self) -> int:
        """The age of waiting events that raises an alarm: twice `table_minutes`, and an hour for the run itself."""
        return 2 * self.table_minutes * 60 + 3600

    @property
    def prefix(self) -> str:
        """The prefix of every resource name: `name_prefix` and `stage`."""
        return f"{self.name_prefix}-{self.stage}"

    @property
    def subnets(self) -> Mapping[str, str]:
        """The subnets of an existing network, each with its zone."""
        return dict(zip(_split_list(self.vpc_subnets), _split_list(self.vpc_zones), strict=True))

    @property
    def readers(self) -> tuple[str, ...]:
        """The ARNs of `table_readers`."""
        return tuple(each.strip() for each in self.table_readers.split(",") if each.strip())

    @property
    def streams(self) -> Mapping[str, int]:
        """The shards of each stream by its name: of the shared one and of `dedicated_streams`. Empty with MSK."""
        if self.on_msk:
            return {}
        dedicated = (each.split("=") for each in self.dedicated_streams.split(",") if each)
        return {self.prefix: self.shards, **{f"{self.prefix}-{name}": int(shards) for name, shards in dedicated}}

    @property
    def jwks(self) -> str:
        """The URL of the key set: `auth_jwks`, or the usual path below the issuer."""
        return self.auth_jwks or f"{self.auth_issuer.rstrip('/')}/.well-known/jwks.json"

    @property
    def chosen(self) -> Settings:
        """The broker's settings, with the values of `settings` applied."""
        try:
            return Settings.from_env(self.settings)
        except BadSetting as error:
            raise BadContext(str(error)) from error

    @classmethod
    def of(cls, node: Node) -> Context:
        """Read the context of a CDK app: its command line and its cdk.json.

        Raises `BadContext` for a name that is neither a field nor a setting.
        """
        given = {name: value for name, value in node.get_all_context().items() if not _belongs_to_cdk(name)}
        settings = {name: str(value) for name, value in given.items() if name.startswith(SETTING_PREFIX)}
        kinds = {each.name: str(each.type) for each in fields(cls) if each.name != "settings"}
        for name in given:
            if name not in kinds and name not in SETTING_NAMES:
                raise BadContext(f"{name} is not a known value.{_suggestion(name, [*kinds, *SETTING_NAMES])}")
        return cls(
            **{name: _parse(name, kinds[name], given[name]) for name in given if name in kinds}, settings=settings
        )


def _split_list(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _belongs_to_cdk(name: str) -> bool:
    """Whether an entry of the context is for the CDK itself. Except for two, such names contain a colon or begin with
    `@`.
    """
    return ":" in name or name.startswith("@") or name in {"cli-telemetry", "acknowledged-issue-numbers"}


def _suggestion(name: str, known: Iterable[str]) -> str:
    return "".join(f" Do you mean {close}?" for close in get_close_matches(name, known, n=1))


def _parse_bool(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).lower()]


PARSERS: Mapping[str, Callable[[Any], Any]] = {"str": str, "int": int, "bool": _parse_bool}
KIND_NAMES = {"str": "a text", "int": "a whole number", "bool": "true or false"}


def _parse(name: str, kind: str, value: Any) -> Any:
    try:
        return PARSERS[kind](value)
    except (ValueError, KeyError, TypeError) as error:
        raise BadContext(f"{name} is {KIND_NAMES[kind]}, and not {value!r}") from error
