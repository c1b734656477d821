"""Stores for archive objects, chosen by URL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

from nakadi.model.log_index import ArchiveLocation
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore, StoredObject

KEYS_PER_REMOVAL = 1000
KEYS_PER_PAGE = 1000

UNFINISHED_SUFFIX = ".unfinished"

MARKER_FILE = ".nakadi-archive"
"""The file in the folder of an archive that shows that the folder's file system is mounted."""

CLOSED_MESSAGE = "The archive is closed."

T = TypeVar("T")


def open_archive(url: str) -> ArchiveStore:
    """The archive at this URL: `memory:`, `file:///folder` or just a folder, or `s3://bucket/prefix`."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        return FolderStore(Path(url))
    if scheme not in STORE_OPENERS:
        raise BadSetting(f"No archive is known for {url!r}; it begins with one of: {', '.join(STORE_OPENERS)}.")
    return STORE_OPENERS[scheme](url)


def folder_of_archive(url: str) -> Path | None:
    """The folder of the archive at this URL; None if the archive is not in a folder."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        return Path(url) if url else None
    return _path_in_url(url) if scheme == "file" else None


def _path_in_url(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def open_archive_if_set(url: str) -> ArchiveStore | None:
    return open_archive(url) if url else None


class MemoryStore:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, bytes] = {}
        self._times: dict[str, datetime] = {}
        self._closed = False

    def put(self, key: str, content: bytes) -> None:
        with self._lock_while_open():
            self._objects[key] = content
            self._times[key] = datetime.now(UTC)

    def read_range(self, location: ArchiveLocation) -> bytes:
        with self._lock_while_open():
            content = self._objects.get(location.key)
        if content is None:
            raise ArchiveObjectGone(location.key)
        return content[location.start : location.start + location.length]

    def remove(self, keys: Sequence[str]) -> None:
        with self._lock_while_open():
            for key in keys:
                self._objects.pop(key, None)

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        with self._lock_while_open():
            found = [StoredObject(key, len(content), self._times[key]) for key, content in self._objects.items()]
        yield from (each for each in found if each.key.startswith(prefix))

    def all_keys(self) -> Sequence[str]:
        return sorted(self._objects)

    def content(self, key: str) -> bytes:
        return self._objects[key]

    def close(self) -> None:
        with self._lock:
            self._closed = True

    @contextmanager
    def _lock_while_open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise Unavailable(CLOSED_MESSAGE)
            yield


class FolderStore:
    def __init__(self, folder: Path) -> None:
        self.marker = folder / MARKER_FILE
        self._folder = folder
        self._closed = False

    def is_marked(self) -> bool:
        with self._check_open():
            return self.marker.exists()

    def put(self, key: str, content: bytes) -> None:
        """Store an object. It is first written under another name, so that no reader sees half an object, not even
        after a power cut.
        """
        path = self._folder / key
        with self._check_open():
            _make_folder_durable(path.parent)
            unfinished = path.with_name(f"{uuid4().hex}{UNFINISHED_SUFFIX}")
            try:
                with unfinished.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                unfinished.replace(path)
            except OSError:
                unfinished.unlink(missing_ok=True)
                raise
            _make_durable(path.parent)

    def read_range(self, location: ArchiveLocation) -> bytes:
        with self._check_open():
            try:
                with (self._folder / location.key).open("rb") as file:
                    file.seek(location.start)
                    return file.read(location.length)
            except FileNotFoundError as error:
                raise ArchiveObjectGone(location.key) from error

    def remove(self, keys: Sequence[str]) -> None:
        with self._check_open():
            for key in keys:
                path = self._folder / key
                path.unlink(missing_ok=True)
                self._remove_empty(path.parent)

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        with self._check_open():
            pass
        for folder, _, names in os.walk(self._folder / prefix):
            for name in names:
                path = Path(folder, name)
                if path == self.marker:
                    continue
                with suppress(FileNotFoundError):
                    found = path.stat()
                    written_at = datetime.fromtimestamp(found.st_mtime, UTC)
                    yield StoredObject(path.relative_to(self._folder).as_posix(), found.st_size, written_at)

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _check_open(self) -> Iterator[None]:
        """Within the block, raise `Unavailable` if the store is closed, or the disk is full or missing."""
        if self._closed:
            raise Unavailable(CLOSED_MESSAGE)
        try:
            yield
        except OSError as error:
            raise Unavailable(f"The archive: {error}") from error

    def _remove_empty(self, folder: Path) -> None:
        """Remove folders that have become empty. A folder that has just received an object stays."""
        while folder != self._folder and self._folder in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


def _make_folder_durable(folder: Path) -> None:
    """Write the parent of a new folder to the disk: only then is the folder durable."""
    if not folder.is_dir():
        _make_folder_durable(folder.parent)
        folder.mkdir(exist_ok=True)
        _make_durable(folder.parent)


def _make_durable(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class OldVersion(NamedTuple):
    """An object that was replaced or removed, in a bucket that keeps versions."""

    key: str
    version_id: str
    size: int


class S3Store:
    """Objects in a bucket, through a boto3 client."""

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        self.bucket = bucket
        self._client = client
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._closed = False

    def put(self, key: str, content: bytes) -> None:
        self._call_s3(
            lambda: self._client.put_object(
                Bucket=self.bucket, Key=self._prefix + key, Body=content, ContentType="application/gzip"
            )
        )

    def read_range(self, location: ArchiveLocation) -> bytes:
        from botocore.exceptions import ClientError  # noqa: PLC0415  # only who uses S3 has it

        last = location.start + location.length - 1
        asked = {"Bucket": self.bucket, "Key": self._prefix + location.key, "Range": f"bytes={location.start}-{last}"}

        def fetch() -> bytes:
            # This covers reading the body too, because a connection can break in the middle of it.
            try:
                return bytes(self._client.get_object(**asked)["Body"].read())
            except ClientError as error:
                if _error_code(error) == "InvalidRange":
                    return b""  # the object is shorter than it was
                raise

        return self._call_s3(fetch, location.key)

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        token: dict[str, str] = {}
        while True:
            wanted = {"Bucket": self.bucket, "Prefix": self._prefix + prefix, "MaxKeys": KEYS_PER_PAGE}
            page = self._call_s3(partial(self._client.list_objects_v2, **wanted, **token))
            for each in page.get("Contents", ()):
                yield StoredObject(each["Key"].removeprefix(self._prefix), each["Size"], each["LastModified"])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def remove(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), KEYS_PER_REMOVAL):
            objects = [{"Key": self._prefix + key} for key in keys[start : start + KEYS_PER_REMOVAL]]
            wanted = {"Objects": objects, "Quiet": True}
            answer = self._call_s3(partial(self._client.delete_objects, Bucket=self.bucket, Delete=wanted))
            # The request succeeds even if no object was removed, because each object has its own result.
            kept = answer.get("Errors", ())
            if kept:
                first = f"{kept[0].get('Key')}: {kept[0].get('Code')}"
                raise Unavailable(f"S3: {len(kept)} of {len(objects)} objects were not removed, the first is {first}")

    def list_old_versions(self, prefix: str) -> Iterator[OldVersion]:
        """The replaced and removed objects with this prefix; none if the bucket keeps no versions."""
        place: dict[str, str] = {}
        while True:
            wanted = {"Bucket": self.bucket, "Prefix": self._prefix + prefix, "MaxKeys": KEYS_PER_PAGE}
            page = self._call_s3(partial(self._client.list_object_versions, **wanted, **place))
            for each in page.get("Versions", ()):
                if not each["IsLatest"]:
                    yield OldVersion(each["Key"].removeprefix(self._prefix), each["VersionId"], each["Size"])
            if not page.get("IsTruncated"):
                return
            place = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    def read_old_version(self, version: OldVersion) -> bytes:
        """Raises `ArchiveObjectGone`."""
        asked = {"Bucket": self.bucket, "Key": self._prefix + version.key, "VersionId": version.version_id}
        return self._call_s3(lambda: bytes(self._client.get_object(**asked)["Body"].read()), version.key)

    def remove_old_versions(self, versions: Sequence[OldVersion]) -> Mapping[OldVersion, str]:
        """Remove versions for good, and return those that stay, with the reason."""
        kept: dict[OldVersion, str] = {}
        for start in range(0, len(versions), KEYS_PER_REMOVAL):
            some = {
                (self._prefix + each.key, each.version_id): each for each in versions[start : start + KEYS_PER_REMOVAL]
            }
            objects = [{"Key": key, "VersionId": version_id} for key, version_id in some]
            wanted = {"Objects": objects, "Quiet": True}
            answer = self._call_s3(partial(self._client.delete_objects, Bucket=self.bucket, Delete=wanted))
            kept |= {some[each["Key"], each["VersionId"]]: str(each.get("Code")) for each in answer.get("Errors", ())}
        return kept

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def _call_s3(self, call: Callable[[], T], key: str = "") -> T:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # only who uses S3 has it
        from botocore.parsers import ResponseParserError  # noqa: PLC0415  # as above

        if self._closed:
            raise Unavailable(CLOSED_MESSAGE)
        try:
            return call()
        except ClientError as error:
            if _error_code(error) in {"NoSuchKey", "NoSuchVersion", "404"}:
                raise ArchiveObjectGone(key) from error
            raise Unavailable(f"S3: {error}") from error
        except (BotoCoreError, ResponseParserError) as error:
            raise Unavailable(f"S3: {error}") from error


def _error_code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code"))


class _LazyS3Client:
    """A client that is created with its first call: publishing, for example, never reads the archive."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._client: Any = None

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._make()
        return getattr(self._client, name)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _open_s3_store(url: str) -> ArchiveStore:
    from botocore.config import Config  # noqa: PLC0415  # only who uses S3 has it

    from nakadi.engines.common.aws_sessions import new_session  # noqa: PLC0415  # as above

    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    config = Config(
        connect_timeout=2,
        read_timeout=10,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=20,
    )

    def client() -> Any:
        return new_session().create_client(
            "s3", config=config, endpoint_url=options.get("endpoint"), region_name=options.get("region")
        )

    return S3Store(_LazyS3Client(client), parts.netloc, parts.path)


STORE_OPENERS: Mapping[str, Callable[[str], ArchiveStore]] = {
    "memory": lambda _url: MemoryStore(),
    "file": lambda url: FolderStore(_path_in_url(url)),
    "s3": _open_s3_store,
}
