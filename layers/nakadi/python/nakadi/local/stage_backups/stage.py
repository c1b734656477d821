"""The tables of DynamoDB, the archive and the Iceberg tables of a stage on AWS, and up to which time its log is
indexed.

Items are read and written as DynamoDB has them: attributes that a later version adds are also copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.engines.archive.stores import open_archive
from nakadi.engines.common.aws_sessions import new_session
from nakadi.engines.dynamodb.tables import TABLES, Table
from nakadi.local.backups.store import BackupFailed
from nakadi.local.stage_backups.place import Item
from nakadi.ports.archive_store import ArchiveStore

ITEMS_PER_WRITE = 25
MAX_WRITE_ATTEMPTS = 20

SECONDS_BETWEEN_LOOKS = 2.0
MAX_LOOKS_AT_INDEX = 150
CLOCK_DIFFERENCE = timedelta(seconds=2)
"""The greatest difference between the clocks of this machine and of the stream."""

CATALOG_ENTRY_MEMBERS = ("Description", "Owner", "TableType", "StorageDescriptor", "Parameters")
"""The members of an entry in Glue's catalog that belong to the table. Glue adds the others."""

Wait = Callable[[float], None]


class StageAddress(Struct, frozen=True):
    """Where a stage is. `name` begins the names of its resources: `nakadi-live`."""

    name: str
    region: str

    def settings(self, account: str) -> Settings:
        tables = f"dynamodb://{self.name}?region={self.region}"
        return Settings(
            registry=tables,
            log_index=tables,
            event_log=f"kinesis://{self.name}?region={self.region}",
            archive=f"s3://{archive_bucket(self, account)}/?region={self.region}",
            auth="off",
        )


def archive_bucket(address: StageAddress, account: str) -> str:
    """The name that the deployment gives to the bucket of the archive."""
    return f"{address.name}-archive-{account}-{address.region}"


def tables_bucket(address: StageAddress, account: str) -> str:
    """The name that the deployment gives to the bucket of the Iceberg tables."""
    return f"{address.name}-tables-{account}-{address.region}"


def database_name(address: StageAddress) -> str:
    """The name that the deployment gives to the database of the Iceberg tables in Glue's catalog."""
    return address.name.replace("-", "_")


class CatalogTable(Struct, frozen=True):
    """An Iceberg table in Glue's catalog: its entry, and the URL of its description."""

    name: str
    location: str
    entry: Mapping[str, Any]


class Stage:
    """An open stage. Its methods raise `BackupFailed` if AWS refuses a call."""

    def __init__(self, address: StageAddress, wait: Wait = time.sleep) -> None:
        self.address = address
        self._wait = wait
        self._tables = self._client("dynamodb")
        sts = self._client("sts")
        account = _call(sts.get_caller_identity)["Account"]
        sts.close()
        self._catalog = self._client("glue")
        self.settings = address.settings(account)
        self.archive: ArchiveStore = open_archive(self.settings.archive)
        self.tables_url = f"s3://{tables_bucket(address, account)}/"
        self.table_files: ArchiveStore = open_archive(f"{self.tables_url}?region={address.region}")

    def scan(self, table: Table) -> Iterator[Item]:
        return self._pages(self._tables.scan, TableName=table.full_name(self.address.name))

    def query(self, table: Table, partition_key: str) -> Iterator[Item]:
        """The items of a partition key, in the order of their sort keys."""
        return self._pages(
            self._tables.query,
            TableName=table.full_name(self.address.name),
            KeyConditionExpression="#key = :key",
            ExpressionAttributeNames={"#key": table.partition_key[0]},
            ExpressionAttributeValues={":key": {"S": partition_key}},
        )

    def first_table_with_items(self) -> str | None:
        for table in TABLES:
            if next(self.scan(table), None) is not None:
                return table.full_name(self.address.name)
        return None

    def find(self, table: Table, key: Item) -> Item | None:
        name = table.full_name(self.address.name)
        found: Item | None = _call(self._tables.get_item, TableName=name, Key=key, ConsistentRead=True).get("Item")
        return found

    def put(self, table: Table, items: Iterable[Item]) -> None:
        rest = iter(items)
        while some := list(islice(rest, ITEMS_PER_WRITE)):
            self._write(table, [{"PutRequest": {"Item": item}} for item in some])

    def remove(self, table: Table, key: Item) -> None:
        self._write(table, [{"DeleteRequest": {"Key": key}}])

    def require_stream(self) -> None:
        """Raise `BackupFailed` if the stage does not keep its events in Kinesis."""
        streams = self._client("kinesis")
        try:
            streams.describe_stream_summary(StreamName=self.address.name)
        except (BotoCoreError, ClientError) as error:
            if _error_code(error) != "ResourceNotFoundException":
                raise _as_failure(error) from error
            raise BackupFailed(
                f"There is no stream {self.address.name} in {self.address.region}. If this stage keeps its events in"
                " MSK, it cannot be backed up; nakadi mirror can copy it to another stage."
            ) from error
        finally:
            streams.close()

    def catalog_tables(self) -> Iterator[CatalogTable]:
        """The Iceberg tables that Glue's catalog has; none before the first job."""
        more: Mapping[str, str] = {}
        while True:
            try:
                page = self._catalog.get_tables(DatabaseName=database_name(self.address), **more)
            except (BotoCoreError, ClientError) as error:
                if _error_code(error) == "EntityNotFoundException":
                    return
                raise _as_failure(error) from error
            for each in page["TableList"]:
                location = each.get("Parameters", {}).get("metadata_location")
                if location is not None:
                    entry = {name: each[name] for name in CATALOG_ENTRY_MEMBERS if name in each}
                    yield CatalogTable(each["Name"], location, entry)
            if not page.get("NextToken"):
                return
            more = {"NextToken": page["NextToken"]}

    def add_catalog_table(self, table: CatalogTable) -> None:
        """Add a table to Glue's catalog, unless an interrupted restoration has added it."""
        database = database_name(self.address)
        entry = {**table.entry, "Parameters": {**table.entry["Parameters"], "metadata_location": table.location}}
        entry["Parameters"].pop("previous_metadata_location", None)
        _add(self._catalog.create_database, DatabaseInput={"Name": database})
        _add(self._catalog.create_table, DatabaseName=database, TableInput={"Name": table.name, **entry})

    def wait_until_indexed(self, moment: datetime, now: Callable[[], datetime]) -> None:
        """Return when everything that was published before this moment is in the index and the archive."""
        broker = open_broker(self.settings)
        try:
            for _ in range(MAX_LOOKS_AT_INDEX):
                looked_at, lag = now(), broker.measure_index_lag()
                # The stream's clock decides when a record arrived, so the moment must have passed by both clocks.
                if lag is not None and looked_at - lag > moment + CLOCK_DIFFERENCE:
                    return
                self._wait(SECONDS_BETWEEN_LOOKS)
        finally:
            broker.close()
        behind = "cannot be measured" if lag is None else f"is {lag.total_seconds():.0f} seconds behind"
        raise BackupFailed(
            f"The log indexer of {self.address.name} {behind}: without it, newer events would be missing."
        )

    def close(self) -> None:
        self._tables.close()
        self._catalog.close()
        self.archive.close()
        self.table_files.close()

    def _client(self, service: str) -> Any:
        config = Config(retries={"mode": "standard", "total_max_attempts": 8})
        return new_session().create_client(service, region_name=self.address.region, config=config)

    def _pages(self, read: Callable[..., Any], **request: Any) -> Iterator[Item]:
        place: Mapping[str, Any] = {}
        while True:
            page = _call(read, ConsistentRead=True, **request, **place)
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            place = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _write(self, table: Table, requests: Sequence[Any]) -> None:
        name = table.full_name(self.address.name)
        for attempt in range(MAX_WRITE_ATTEMPTS):
            answer = _call(self._tables.batch_write_item, RequestItems={name: requests})
            requests = answer.get("UnprocessedItems", {}).get(name, [])
            if not requests:
                return
            self._wait(0.1 * (attempt + 1))
        raise BackupFailed(f"DynamoDB does not accept writes to {name}: try again later.")


def _call(call: Callable[..., Any], **request: Any) -> Any:
    try:
        return call(**request)
    except (BotoCoreError, ClientError) as error:
        raise _as_failure(error) from error


def _add(call: Callable[..., Any], **request: Any) -> None:
    """Call a function that adds an entry to a catalog, and ignore that the entry already exists."""
    try:
        call(**request)
    except (BotoCoreError, ClientError) as error:
        if _error_code(error) != "AlreadyExistsException":
            raise _as_failure(error) from error


def _error_code(error: BotoCoreError | ClientError) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def _as_failure(error: BotoCoreError | ClientError) -> BackupFailed:
    return BackupFailed(f"AWS: {error}.")
