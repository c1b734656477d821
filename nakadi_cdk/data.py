"""The stored data: documents and the log index in DynamoDB, events in Kinesis, the archive and its tables in S3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Aws, Duration, RemovalPolicy
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3tables as s3tables
from constructs import Construct

from nakadi.engines.dynamodb.tables import TABLES, Table
from nakadi_cdk.msk import Cluster

QUERY_RESULTS_PREFIX = "athena/"
SPARK_LOGS_PREFIX = "spark-logs/"
ERASE_PREFIX = "erase/"
TABLES_PREFIX = "tables/"
GATHERED_PREFIX = f"{TABLES_PREFIX}_gathered/"

ATTRIBUTE_TYPES = {
    "S": dynamodb.AttributeType.STRING,
    "N": dynamodb.AttributeType.NUMBER,
    "B": dynamodb.AttributeType.BINARY,
}


@dataclass(frozen=True, slots=True)
class NamedStream:
    """A stream that other stacks refer to by name.

    CloudFormation refuses to remove an export that another stack imports. With exports instead of names, a dedicated
    stream could never be removed.
    """

    name: str

    @property
    def arn(self) -> str:
        return f"arn:{Aws.PARTITION}:kinesis:{Aws.REGION}:{Aws.ACCOUNT_ID}:stream/{self.name}"

    def sum_metric(self, metric: str, period: Duration) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace="AWS/Kinesis",
            metric_name=metric,
            dimensions_map={"StreamName": self.name},
            statistic="Sum",
            period=period,
        )


class Data(Construct):
    """Tables, streams and buckets. With `keep` they outlive their stack, so that removing a stack deletes no data."""

    cluster: Cluster | None = None
    """The MSK cluster that stores events instead of streams."""

    sink_key: kms.IKey | None = None
    """The key that seals the secrets of sinks; without it, the broker has no sinks."""

    has_table_bucket = False
    """Whether a table bucket of S3 Tables holds the tables, instead of an ordinary bucket."""

    def __init__(  # noqa: PLR0913  # each is a choice of its own
        self,
        scope: Construct,
        name: str,
        *,
        prefix: str,
        on_demand: bool,
        shards: Mapping[str, int],
        stream_retention: Duration,
        keep: bool = True,
        key: kms.IKey | None = None,
        version_days: int = 0,
        recovery_days: int = 35,
        archive_replica: str = "",
    ) -> None:
        super().__init__(scope, name)
        self.prefix = prefix
        self.key = key
        self._keep = keep
        self._version_days = version_days
        self._recovery_days = recovery_days
        self._archive_replica = archive_replica
        self.tables: Mapping[str, dynamodb.Table] = {each.name_suffix: self._create_table(each) for each in TABLES}
        for each, count in shards.items():
            self._create_stream(each, shards=None if on_demand else count, retention=stream_retention)
        self.streams = {each: NamedStream(each) for each in shards}
        self.archive = self._create_archive_bucket()
        self.analysed = self._create_tables_bucket()

    @property
    def settings(self) -> Mapping[str, str]:
        """The addresses of the stores, as settings of the broker."""
        # Not every AWS service sets the region variable that clients look for.
        tables = f"dynamodb://{self.prefix}?region={Aws.REGION}"
        return {
            "registry": tables,
            "log_index": tables,
            "event_log": self.cluster.event_log if self.cluster else f"kinesis://{self.prefix}?region={Aws.REGION}",
            "archive": f"s3://{self._archive_name}/?region={Aws.REGION}",
            "sink_key": self.sink_key.key_arn if self.sink_key else "",
        }

    @property
    def consumers_arn(self) -> str:
        """The ARN pattern of registered stream consumers, whose names begin with the stage's prefix."""
        streams = f"arn:{Aws.PARTITION}:kinesis:{Aws.REGION}:{Aws.ACCOUNT_ID}:stream/{self.prefix}*"
        return f"{streams}/consumer/{self.prefix}-*"

    @property
    def _archive_name(self) -> str:
        return bucket_name(self.prefix, "archive", Aws.ACCOUNT_ID, Aws.REGION)

    @property
    def archive_arn(self) -> str:
        return f"arn:{Aws.PARTITION}:s3:::{self._archive_name}"

    @property
    def archive_objects(self) -> str:
        return f"{self.archive_arn}/*"

    @property
    def _tables_name(self) -> str:
        return bucket_name(self.prefix, "tables", Aws.ACCOUNT_ID, Aws.REGION)

    @property
    def tables_arn(self) -> str:
        return f"arn:{Aws.PARTITION}:s3:::{self._tables_name}"

    @property
    def tables_url(self) -> str:
        return f"s3://{self._tables_name}"

    @property
    def table_bucket_arn(self) -> str:
        """The ARN of the table bucket. Its name is unique within an account and region, not globally."""
        return f"arn:{Aws.PARTITION}:s3tables:{Aws.REGION}:{Aws.ACCOUNT_ID}:bucket/{self._table_bucket_name}"

    @property
    def _table_bucket_name(self) -> str:
        return f"{self.prefix}-tables"

    @property
    def _removal_policy(self) -> RemovalPolicy:
        return RemovalPolicy.RETAIN if self._keep else RemovalPolicy.DESTROY

    def _create_table(self, table: Table) -> dynamodb.Table:
        return dynamodb.Table(
            self,
            table.name_suffix,
            table_name=table.full_name(self.prefix),
            partition_key=_dynamodb_attribute(table.partition_key),
            sort_key=_dynamodb_attribute(table.sort_key) if table.sort_key else None,
            time_to_live_attribute=table.expiry_attribute,
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED if self.key else dynamodb.TableEncryption.AWS_MANAGED,
            encryption_key=self.key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=self._recovery_days > 0,
                # AWS keeps backups for 35 days unless the template says otherwise.
                recovery_period_in_days=None if self._recovery_days in (0, 35) else self._recovery_days,
            ),
            deletion_protection=self._keep,
            removal_policy=self._removal_policy,
        )

    def _create_stream(self, name: str, *, shards: int | None, retention: Duration) -> None:
        kinesis.Stream(
            self,
            f"Stream{name.removeprefix(self.prefix)}",
            stream_name=name,
            stream_mode=kinesis.StreamMode.PROVISIONED if shards else kinesis.StreamMode.ON_DEMAND,
            shard_count=shards,
            retention_period=retention,
            encryption=kinesis.StreamEncryption.KMS if self.key else kinesis.StreamEncryption.MANAGED,
            encryption_key=self.key,
            removal_policy=self._removal_policy,
        )

    def _create_archive_bucket(self) -> s3.Bucket:
        """Create the bucket of the archive. Only jobs delete its objects, each after its last event has expired."""
        older = s3.Transition(storage_class=s3.StorageClass.INTELLIGENT_TIERING, transition_after=Duration.days(30))
        copies = []
        if self._archive_replica:
            # Deletions are not copied, so objects deleted here by mistake still exist in the copy.
            replica = s3.Bucket.from_bucket_arn(self, "ArchiveReplica", self._archive_replica)
            copies = [s3.ReplicationRule(destination=replica)]
        return self._create_bucket("Archive", self._archive_name, transitions=[older], copies=copies)

    def _create_tables_bucket(self) -> s3.Bucket:
        """Create the bucket of the tables. The catalog of the tables decides which files are still needed."""
        days = {QUERY_RESULTS_PREFIX: 30, SPARK_LOGS_PREFIX: 14, ERASE_PREFIX: 1, GATHERED_PREFIX: 2}
        names = {
            QUERY_RESULTS_PREFIX: "what-queries-found",
            SPARK_LOGS_PREFIX: "logs-of-spark",
            ERASE_PREFIX: "values-to-erase",
            GATHERED_PREFIX: "copies",
        }
        rules = [
            s3.LifecycleRule(id=names[prefix], prefix=prefix, expiration=Duration.days(days[prefix])) for prefix in days
        ]
        return self._create_bucket("Tables", self._tables_name, rules=rules)

    def add_sink_key(self) -> None:
        """Create a key for the secrets of sinks, unless one key covers all data."""
        self.sink_key = self.key or kms.Key(
            self,
            "SinkKey",
            description=f"Seals the secrets of sinks of {self.prefix}",
            enable_key_rotation=True,
            removal_policy=self._removal_policy,
        )

    def add_table_bucket(self) -> None:
        """Create a table bucket of S3 Tables for the tables."""
        self.has_table_bucket = True
        encryption = s3tables.CfnTableBucket.EncryptionConfigurationProperty(
            sse_algorithm="aws:kms" if self.key else "AES256", kms_key_arn=self.key.key_arn if self.key else None
        )
        bucket = s3tables.CfnTableBucket(
            self,
            "TableBucket",
            table_bucket_name=self._table_bucket_name,
            encryption_configuration=encryption,
            # Jobs cannot list files that killed runs left behind.
            unreferenced_file_removal=s3tables.CfnTableBucket.UnreferencedFileRemovalProperty(
                status="Enabled", unreferenced_days=3, noncurrent_days=1
            ),
        )
        bucket.apply_removal_policy(self._removal_policy)

    def _create_bucket(
        self,
        name: str,
        bucket_name: str,
        transitions: Sequence[s3.Transition] = (),
        rules: Sequence[s3.LifecycleRule] = (),
        copies: Sequence[s3.ReplicationRule] = (),
    ) -> s3.Bucket:
        kept = Duration.days(self._version_days) if self._version_days else None
        return s3.Bucket(
            self,
            name,
            bucket_name=bucket_name,
            encryption=s3.BucketEncryption.KMS if self.key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=self.key,
            # A bucket key saves a request to KMS for each object.
            bucket_key_enabled=True if self.key else None,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            removal_policy=self._removal_policy,
            versioned=True if kept else None,
            replication_rules=list(copies) or None,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="what-was-begun-and-what-is-old",
                    abort_incomplete_multipart_upload_after=Duration.days(1),
                    transitions=list(transitions),
                    noncurrent_version_expiration=kept,
                    expired_object_delete_marker=True if kept else None,
                ),
                *rules,
            ],
        )


def bucket_name(prefix: str, purpose: str, account: str, region: str) -> str:
    """The name of a bucket, which is unique globally."""
    return f"{prefix}-{purpose}-{account}-{region}"


def _dynamodb_attribute(key: tuple[str, str]) -> dynamodb.Attribute:
    name, kind = key
    return dynamodb.Attribute(name=name, type=ATTRIBUTE_TYPES[kind])
