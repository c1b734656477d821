"""Finds the Iceberg tables that the jobs write: for each, the metadata file that describes its current state.

Such a file never changes, so a query reads the same state for as long as it runs. Catalogs differ only in how this file
is found.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, urlsplit

import httpx
from msgspec import Struct

from nakadi.engines.archive.stores import open_archive
from nakadi.model.log_index import ArchiveLocation
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone
from nakadi_sql.errors import NoTable, TablesUnreadable

CATALOG_SECONDS = 30.0
NOT_FOUND = 404

_MAX_HINT_BYTES = 20


class TableFiles(Struct, frozen=True):
    """A state of a table: its metadata file, and the folder with all files of the table."""

    metadata: str
    folder: str


class Tables(Protocol):
    """The tables of the jobs."""

    def find(self, name: str) -> TableFiles:
        """The current state of a table. Raises `NoTable` and `TablesUnreadable`."""


def open_tables(place: str, database: str = "nakadi", token: str | None = None) -> Tables:
    """The tables at a place: a folder or an `s3://` prefix, as the jobs write them without a catalog; `glue`; or the
    URL of a REST catalog, perhaps with `?warehouse=…`. `token` is the token for a REST catalog.
    """
    if place == "glue":
        return GlueTables(database)
    if place.startswith(("http://", "https://")):
        return RestTables(place, database, token)
    return FolderTables(place, database)


class FolderTables(Struct, frozen=True):
    """The tables in a folder or a bucket."""

    folder: str
    database: str = "nakadi"

    def find(self, name: str) -> TableFiles:
        place = self.folder if urlsplit(self.folder).scheme else f"file://{Path(self.folder).absolute()}"
        try:
            return self._find_in(place, f"{self.database}/{name}")
        except (BadSetting, Unavailable) as error:
            raise TablesUnreadable(f"The tables in {place} cannot be read: {error}") from error

    def _find_in(self, place: str, table: str) -> TableFiles:
        with closing(open_archive(place)) as files:
            number = -1
            with suppress(ArchiveObjectGone, ValueError):
                hint = ArchiveLocation(f"{table}/metadata/version-hint.text", 0, _MAX_HINT_BYTES)
                number = int(files.read_range(hint))
            if number < 0:
                where = f"{place}/{table}"
                raise NoTable(
                    f"The broker knows a table that is not in {where}: --tables or NAKADI_TABLES names its place."
                )
            # A commit writes the hint last, so there may be newer metadata files than the hint names.
            while [*files.list_objects(f"{table}/metadata/v{number + 1}.metadata.json")]:
                number += 1
        return _files_at(f"{place.rstrip('/')}/{table}/metadata/v{number}.metadata.json")


class RestTables(Struct, frozen=True):
    """The tables in a REST catalog of Iceberg."""

    url: str
    database: str = "nakadi"
    token: str | None = None

    def find(self, name: str) -> TableFiles:
        parts = urlsplit(self.url)
        base = parts._replace(query="", fragment="").geturl().rstrip("/")
        warehouse = parse_qs(parts.query).get("warehouse", [])
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            with httpx.Client(headers=headers, timeout=CATALOG_SECONDS) as client:
                found = _read_json(client, f"{base}/v1/config", {"warehouse": warehouse[0]} if warehouse else {})
                prefix = {**found.get("defaults", {}), **found.get("overrides", {})}.get("prefix")
                middle = f"/{quote(prefix, safe='')}" if prefix else ""
                names = f"namespaces/{quote(self.database, safe='')}/tables/{quote(name, safe='')}"
                return _files_at(_read_json(client, f"{base}/v1{middle}/{names}", {})["metadata-location"])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            is_missing = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == NOT_FOUND
            kind = NoTable if is_missing else TablesUnreadable
            raise kind(f"The catalog {base} does not say where the table {name} is: {error}") from error


def _read_json(client: httpx.Client, url: str, parameters: dict[str, str]) -> Any:
    return client.get(url, params=parameters).raise_for_status().json()


class GlueTables(Struct, frozen=True):
    """The tables in Glue's catalog, in the account and region of the environment."""

    database: str = "nakadi"

    def find(self, name: str) -> TableFiles:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = boto3.client("glue").get_table(DatabaseName=self.database, Name=name)
            return _files_at(found["Table"]["Parameters"]["metadata_location"])
        except (BotoCoreError, ClientError, KeyError) as error:
            is_missing = isinstance(error, ClientError) and error.response["Error"]["Code"] == "EntityNotFoundException"
            kind = NoTable if is_missing else TablesUnreadable
            raise kind(f"Glue's catalog does not say where the table {self.database}.{name} is: {error}") from error


def _files_at(metadata: str) -> TableFiles:
    """The files of a table whose metadata file is at this URL or path."""
    parts = urlsplit(metadata)
    local = parts.path if parts.scheme == "file" else metadata
    place = local.replace("s3a://", "s3://", 1)
    return TableFiles(place, place.rpartition("/metadata/")[0])
