"""Finds the files of an Iceberg table's current state, and moves the table to another bucket.

Iceberg's metadata names files by absolute URLs:

    metadata.json ──> list of manifests ──> manifests ──> data files
                                                     └──> lists of replaced rows ──> data files

`read_table` follows these names. `moved_files` returns the files that name other files, with the URLs of the other
bucket; data files name no others, so their bytes stay the same. Only the current snapshot moves, because older ones are
kept only for days.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nakadi.common.avro_files import AvroFile, BadAvro, read_avro_file, write_avro_file
from nakadi.local.backups.store import BackupFailed

NEWEST_FORMAT = 2
"""Version 3 has further files with URLs, and the jobs write version 2."""

POSITION_DELETES = 1
"""The content of a file that lists replaced rows, by the URLs of their data files."""

FILE_PATH_COLUMN = 2147483546
"""Iceberg's number for the column of a list of replaced rows that has the URL of a data file."""

DELETED_ENTRY = 2

JOB_PROPERTY_PREFIX = "nakadi."
"""The prefix of the properties that jobs store with a snapshot, and read from the table if no snapshot has them."""

ReadFile = Callable[[str], bytes]
"""Reads the file with a key of the bucket."""


class CannotMove(Exception):
    """Raised for a table that cannot be moved; the message says why."""


class TableFiles(Struct, frozen=True):
    """The keys of the files of a table's current state, and its description, `metadata.json`.

    `manifests` names data files and `delete_files`, which list replaced rows.
    """

    metadata: Mapping[str, Any]
    manifest_list: str | None
    manifests: Sequence[str]
    data_files: Sequence[str]
    delete_files: Sequence[str]

    @property
    def keys(self) -> Sequence[str]:
        lists = () if self.manifest_list is None else (self.manifest_list,)
        return (*lists, *self.manifests, *self.data_files, *self.delete_files)


def read_table(metadata: Mapping[str, Any], bucket: str, read: ReadFile) -> TableFiles:
    """Find the files of the current state. `bucket` is the URL before all keys, such as `s3://tables/`.

    Raises `CannotMove`.
    """
    if metadata["format-version"] > NEWEST_FORMAT:
        raise CannotMove(f"it has version {metadata['format-version']} of Iceberg's format")
    snapshot = _current_snapshot(metadata)
    if snapshot is None:
        return TableFiles(metadata, None, (), (), ())
    manifest_list = key_in(snapshot["manifest-list"], bucket)
    manifests = [key_in(each["manifest_path"], bucket) for each in _read(manifest_list, read).records]
    data_files, delete_files = list[str](), set[str]()
    for manifest in manifests:
        for entry in _read(manifest, read).records:
            file = entry["data_file"]
            if entry["status"] != DELETED_ENTRY:
                key = key_in(file["file_path"], bucket)
                if file.get("content", 0) == POSITION_DELETES:
                    delete_files.add(key)
                else:
                    data_files.append(key)
    return TableFiles(metadata, manifest_list, manifests, data_files, sorted(delete_files))


def moved_files(files: TableFiles, read: ReadFile, old: str, new: str) -> Iterator[tuple[str, bytes]]:
    """The files that name other files, with their keys, in the form for the bucket `new`.

    Each file comes before the file that names it.
    """
    sizes: dict[str, int] = {}

    def moved(key: str, content: bytes) -> tuple[str, bytes]:
        sizes[new + key] = len(content)
        return key, content

    def move(url: str) -> str:
        return new + key_in(url, old)

    for key in files.delete_files:
        yield moved(key, _with_moved_row_places(read(key), move))
    for key in files.manifests:
        manifest = _read(key, read)
        entries = [_moved_entry(entry, move, sizes) for entry in manifest.records]
        yield moved(key, write_avro_file(replace(manifest, records=entries)))
    if files.manifest_list is not None:
        listed = _read(files.manifest_list, read)
        records = []
        for each in listed.records:
            path = move(each["manifest_path"])
            records.append({**each, "manifest_path": path, "manifest_length": sizes[path]})
        yield moved(files.manifest_list, write_avro_file(replace(listed, records=records)))


def moved_metadata(metadata: Mapping[str, Any], old: str, new: str) -> Mapping[str, Any]:
    """The description of the table in the bucket `new`, with its current snapshot alone."""
    changed = {
        **metadata,
        "location": new + key_in(metadata["location"], old),
        "properties": {
            name: new + key_in(value, old) if value.startswith(old) else value
            for name, value in {**metadata.get("properties", {}), **_job_properties(metadata)}.items()
        },
        "snapshots": [],
        "refs": {},
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }
    snapshot = _current_snapshot(metadata)
    if snapshot is not None:
        identity = snapshot["snapshot-id"]
        changed["snapshots"] = [{**snapshot, "manifest-list": new + key_in(snapshot["manifest-list"], old)}]
        changed["refs"] = {"main": {"snapshot-id": identity, "type": "branch"}}
        changed["snapshot-log"] = [{"snapshot-id": identity, "timestamp-ms": snapshot["timestamp-ms"]}]
    return changed


def metadata_bytes(metadata: Mapping[str, Any]) -> bytes:
    return json.dumps(metadata, separators=(",", ":")).encode()


def _current_snapshot(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return _snapshots(metadata).get(metadata.get("current-snapshot-id"))


def _snapshots(metadata: Mapping[str, Any]) -> Mapping[Any, Mapping[str, Any]]:
    return {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}


def _job_properties(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """The properties that jobs stored with the current snapshot or, without any, with the nearest earlier snapshot that
    has some.
    """
    found: dict[str, str] = {}
    snapshots, snapshot = _snapshots(metadata), _current_snapshot(metadata)
    while snapshot is not None:
        for name, value in snapshot.get("summary", {}).items():
            if name.startswith(JOB_PROPERTY_PREFIX):
                found.setdefault(name, value)
        snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))
    return found


def _moved_entry(entry: Mapping[str, Any], move: Callable[[str], str], sizes: Mapping[str, int]) -> Mapping[str, Any]:
    file = dict(entry["data_file"])
    file["file_path"] = path = move(file["file_path"])
    if file.get("referenced_data_file") is not None:
        file["referenced_data_file"] = move(file["referenced_data_file"])
    if file.get("content", 0) == POSITION_DELETES:
        # Entries with the status "deleted" name files that no longer exist, and keep the size.
        file["file_size_in_bytes"] = sizes.get(path, file["file_size_in_bytes"])
        file["split_offsets"] = None
        for bounds in ("lower_bounds", "upper_bounds"):
            file[bounds] = file[bounds] and [
                {**each, "value": move(each["value"].decode()).encode()} if each["key"] == FILE_PATH_COLUMN else each
                for each in file[bounds]
            ]
    return {**entry, "data_file": file}


def _with_moved_row_places(content: bytes, move: Callable[[str], str]) -> bytes:
    """A list of replaced rows that names data files by their new URLs."""
    try:
        import pyarrow as pa  # noqa: PLC0415  # only tables that mark rows as replaced need it
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise BackupFailed("Restoring tables needs pyarrow: pip install 'nakadi-serverless[cli,aws,jobs]'.") from error
    rows = parquet.read_table(BytesIO(content))
    number = rows.schema.get_field_index("file_path")
    paths = pa.array([move(path) for path in rows["file_path"].to_pylist()], pa.string())
    written = BytesIO()
    changed = rows.set_column(number, rows.schema.field(number), paths)
    parquet.write_table(changed, written, compression="zstd", store_schema=False)
    return written.getvalue()


def _read(key: str, read: ReadFile) -> AvroFile:
    try:
        return read_avro_file(read(key))
    except BadAvro as error:
        raise CannotMove(f"{key} cannot be read: {error}") from error


def key_in(url: str, bucket: str) -> str:
    """The key of a file with this URL. Raises `CannotMove` if the file is not in the bucket."""
    if not url.startswith(bucket):
        raise CannotMove(f"{url} is not in {bucket}")
    return url.removeprefix(bucket)
