"""What is kept: documents and the log index in DynamoDB, events in Kinesis, their archive and its tables in S3."""

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

FOUND = "athena/"
SPARK_LOGS = "spark-logs/"
ERASE = "erase/"
GATHERED = "tables/_gathered/"
"""What queries find is below this prefix of the tables' bucket."""

KINDS = {"S": dynamodb.AttributeType.STRING, "N": dynamodb.AttributeType.NUMBER, "B": dynamodb.AttributeType.BINARY}


@dataclass(frozen=True, slots=True)
class NamedStream:
    """A stream as other stacks know it: by its name.

    What CloudFormation exports cannot be removed while it is in use, so a dedicated stream could never go.
    """

    name: str

    @property
    def arn(self) -> str:
        return f"arn:{Aws.PARTITION}:kinesis:{Aws.REGION}:{Aws.ACCOUNT_ID}:stream/{self.name}"

    def sum_of(self, metric: str, period: Duration) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace="AWS/Kinesis",
            metric_name=metric,
            dimensions_map={"StreamName": self.name},
            statistic="Sum",
            period=period,
        )


class Data(Construct):
    """Nothing of it goes with its stack, as long as it is to be kept: what people stored is theirs to delete."""

    cluster: Cluster | None = None
    """Where events are instead of streams."""

    has_table_bucket = False
    """Whether tables are in one, instead of in the bucket that they have otherwise."""

    def __init__(
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
    ) -> None:
        super().__init__(scope, name)
        self.prefix = prefix
        self.key = key
        self._keep = keep
        self.tables: Mapping[str, dynamodb.Table] = {each.name_suffix: self._table(each) for each in TABLES}
        for each, count in shards.items():
            self._stream(each, shards=None if on_demand else count, retention=stream_retention)
        self.streams = {each: NamedStream(each) for each in shards}
        self.archive = self._archive()
        self.analysed = self._analysed()

    @property
    def settings(self) -> Mapping[str, str]:
        """Where the engines find it."""
        # Not every AWS service tells its processes their region in the way in which their clients look for it.
        tables = f"dynamodb://{self.prefix}?region={Aws.REGION}"
        return {
            "registry": tables,
            "log_index": tables,
            "event_log": self.cluster.event_log if self.cluster else f"kinesis://{self.prefix}?region={Aws.REGION}",
            "archive": f"s3://{self._archive_name}/?region={Aws.REGION}",
        }

    @property
    def consumers_arn(self) -> str:
        """Those that processes register to have shards pushed: each has a name of its own behind the stage's."""
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
        """Of S3 Tables. Its name is the account's in a region, and not the whole world's."""
        return f"arn:{Aws.PARTITION}:s3tables:{Aws.REGION}:{Aws.ACCOUNT_ID}:bucket/{self._table_bucket_name}"

    @property
    def _table_bucket_name(self) -> str:
        return f"{self.prefix}-tables"

    @property
    def _removal(self) -> RemovalPolicy:
        return RemovalPolicy.RETAIN if self._keep else RemovalPolicy.DESTROY

    def _table(self, table: Table) -> dynamodb.Table:
        return dynamodb.Table(
            self,
            table.name_suffix,
            table_name=table.full_name(self.prefix),
            partition_key=_attribute(table.partition_key),
            sort_key=_attribute(table.sort_key) if table.sort_key else None,
            time_to_live_attribute=table.expiry_attribute,
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED if self.key else dynamodb.TableEncryption.AWS_MANAGED,
            encryption_key=self.key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=self._keep,
            removal_policy=self._removal,
        )

    def _stream(self, name: str, *, shards: int | None, retention: Duration) -> None:
        kinesis.Stream(
            self,
            f"Stream{name.removeprefix(self.prefix)}",
            stream_name=name,
            stream_mode=kinesis.StreamMode.PROVISIONED if shards else kinesis.StreamMode.ON_DEMAND,
            shard_count=shards,
            retention_period=retention,
            encryption=kinesis.StreamEncryption.KMS if self.key else kinesis.StreamEncryption.MANAGED,
            encryption_key=self.key,
            removal_policy=self._removal,
        )

    def _archive(self) -> s3.Bucket:
        """Objects are never changed, and go when the events in them have gone: no rule here may let them go before."""
        older = s3.Transition(storage_class=s3.StorageClass.INTELLIGENT_TIERING, transition_after=Duration.days(30))
        return self._bucket("Archive", self._archive_name, transitions=[older])

    def _analysed(self) -> s3.Bucket:
        """Tables for queries, whose own catalog says which of its files are still needed."""
        days = {FOUND: 30, SPARK_LOGS: 14, ERASE: 1, GATHERED: 2}
        names = {FOUND: "what-queries-found", SPARK_LOGS: "logs-of-spark", ERASE: "values-to-erase", GATHERED: "copies"}
        rules = [
            s3.LifecycleRule(id=names[prefix], prefix=prefix, expiration=Duration.days(days[prefix])) for prefix in days
        ]
        return self._bucket("Tables", self._tables_name, rules=rules)

    def add_table_bucket(self) -> None:
        """Have tables in a table bucket of S3 Tables."""
        self.has_table_bucket = True
        encryption = s3tables.CfnTableBucket.EncryptionConfigurationProperty(
            sse_algorithm="aws:kms" if self.key else "AES256", kms_key_arn=self.key.key_arn if self.key else None
        )
        bucket = s3tables.CfnTableBucket(
            self,
            "TableBucket",
            table_bucket_name=self._table_bucket_name,
            encryption_configuration=encryption,
            # What runs leave that were killed cannot be listed by jobs.
            unreferenced_file_removal=s3tables.CfnTableBucket.UnreferencedFileRemovalProperty(
                status="Enabled", unreferenced_days=3, noncurrent_days=1
            ),
        )
        bucket.apply_removal_policy(self._removal)

    def _bucket(
        self,
        name: str,
        bucket_name: str,
        transitions: Sequence[s3.Transition] = (),
        rules: Sequence[s3.LifecycleRule] = (),
    ) -> s3.Bucket:
        return s3.Bucket(
            self,
            name,
            bucket_name=bucket_name,
            encryption=s3.BucketEncryption.KMS if self.key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=self.key,
            # A key of the bucket's, made with this one, is asked for instead of this one for each object.
            bucket_key_enabled=True if self.key else None,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            removal_policy=self._removal,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="what-was-begun-and-what-is-old",
                    abort_incomplete_multipart_upload_after=Duration.days(1),
                    transitions=list(transitions),
                ),
                *rules,
            ],
        )


def bucket_name(prefix: str, purpose: str, account: str, region: str) -> str:
    """Names of buckets are the whole world's."""
    return f"{prefix}-{purpose}-{account}-{region}"


def _attribute(key: tuple[str, str]) -> dynamodb.Attribute:
    name, kind = key
    return dynamodb.Attribute(name=name, type=KINDS[kind])
