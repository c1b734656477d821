"""Stages on AWS for tests: the resources of a deployment in one region, on moto, and a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

from nakadi.app.engines import open_log_index
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.dynamodb.tables import TABLES
from nakadi.engines.kinesis.opening import open_indexer
from nakadi.local.stage_backups import stage as stage_module
from nakadi.local.stage_backups.stage import Stage, StageAddress, archive_bucket, database_name, tables_bucket
from tests.support.aws import aws
from tests.support.iceberg import table_files
from tests.support.kinesis import FAST_OPTIONS, session, use_fast_clients, wait_until_active
from tests.support.served import ServedBroker

NAME = "nakadi-live"
ACCOUNT = "123456789012"
FIRST, SECOND = "eu-central-1", "eu-west-1"


class EmulatedStage:
    """The tables, the stream and the bucket that the data stack creates."""

    def __init__(self, region: str, shards: int = 2) -> None:
        self.address = StageAddress(NAME, region)
        self._settings = self.address.settings(ACCOUNT)
        self._dynamodb, self._kinesis, self._s3, self._glue = (
            session().create_client(each, region) for each in ("dynamodb", "kinesis", "s3", "glue")
        )
        self._bucket = archive_bucket(self.address, ACCOUNT)
        self.tables_bucket = tables_bucket(self.address, ACCOUNT)
        for table in TABLES:
            self._dynamodb.create_table(**table.create_request(NAME))
        self._kinesis.create_stream(StreamName=NAME, ShardCount=shards)
        wait_until_active(self._kinesis, NAME)
        for bucket in (self._bucket, self.tables_bucket):
            self._s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})

    def broker(self) -> ServedBroker:
        return ServedBroker(
            registry=self._settings.registry,
            coordination=self._settings.registry,
            log_index=self._settings.log_index,
            event_log=self._stream,
            archive=self._settings.archive,
            cache_seconds=0,
        )

    def index(self) -> None:
        """Index the stream's records, as the log indexer does."""
        index, archive = open_log_index(self._settings.log_index), open_archive(self._settings.archive)
        indexer = open_indexer(self._stream, index, archive)
        for shard in self._kinesis.list_shards(StreamName=NAME)["Shards"]:
            indexer.catch_up(shard["ShardId"])
        index.close()
        archive.close()

    def open(self, wait: object = None) -> Stage:
        return Stage(self.address, wait or (lambda _: self.index()))

    def create_bucket(self, name: str) -> str:
        """Create another bucket in this region, and return its URL."""
        region = self.address.region
        self._s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": region})
        return f"s3://{name}/stages?region={region}"

    def archived_keys(self) -> list[str]:
        return self._keys(self._bucket)

    def remove_object(self, key: str) -> None:
        self._s3.delete_object(Bucket=self._bucket, Key=key)

    # Iceberg tables

    def write_table(self, name: str, rows: Sequence[str], snapshot: int = 1) -> None:
        """Write the files of a table, and commit them to Glue's catalog, as a job does."""
        database = database_name(self.address)
        location, contents = table_files(f"s3://{self.tables_bucket}/", f"{database}.db/{name}", rows, snapshot)
        for key, content in contents.items():
            self._s3.put_object(Bucket=self.tables_bucket, Key=key, Body=content)
        entry = {"Name": name, "Parameters": {"table_type": "ICEBERG", "metadata_location": location}}
        if snapshot == 1:
            if not self._glue.get_databases()["DatabaseList"]:
                self._glue.create_database(DatabaseInput={"Name": database})
            self._glue.create_table(DatabaseName=database, TableInput=entry)
        else:
            self._glue.update_table(DatabaseName=database, TableInput=entry)

    def table_location(self, name: str) -> str:
        found = self._glue.get_table(DatabaseName=database_name(self.address), Name=name)
        return str(found["Table"]["Parameters"]["metadata_location"])

    def table_keys(self) -> list[str]:
        return self._keys(self.tables_bucket)

    def read_table_file(self, key: str) -> bytes:
        return bytes(self._s3.get_object(Bucket=self.tables_bucket, Key=key)["Body"].read())

    def remove_table_file(self, key: str) -> None:
        self._s3.delete_object(Bucket=self.tables_bucket, Key=key)

    def _keys(self, bucket: str) -> list[str]:
        return [each["Key"] for each in self._s3.list_objects_v2(Bucket=bucket).get("Contents", [])]

    def delete_stream(self) -> None:
        self._kinesis.delete_stream(StreamName=NAME)

    def delete(self) -> None:
        """Delete all resources of the stage."""
        for table in TABLES:
            self._dynamodb.delete_table(TableName=table.full_name(NAME))
        self.delete_stream()
        for key in self.archived_keys():
            self.remove_object(key)
        for key in self.table_keys():
            self.remove_table_file(key)
        for bucket in (self._bucket, self.tables_bucket):
            self._s3.delete_bucket(Bucket=bucket)

    @property
    def _stream(self) -> str:
        return f"{self._settings.event_log}&{FAST_OPTIONS}"


@contextmanager
def a_cloud() -> Iterator[None]:
    one_clock = patch.object(stage_module, "CLOCK_DIFFERENCE", timedelta(0))
    with aws(), use_fast_clients(), one_clock, patch.object(stage_module, "new_session", session):
        yield
