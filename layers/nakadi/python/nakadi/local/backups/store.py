"""The folder with backups: files in pieces of a megabyte, each kept once under its checksum.

    pieces/<two digits>/<SHA-256 of the content>
    backups/<id>.json     the files of one backup, each with its pieces; written last
    lock                  held by a process that writes or reads here

A backup exists only if it has a file in `backups`: however an attempt ends, the folder has the backups that it had
before. A later backup writes only the pieces that the folder does not have yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from nakadi.common.converting import Converter

FORMAT = 1
PIECE_BYTES = 1 << 20
UNFINISHED_SUFFIX = ".unfinished"
DAMAGED_SUFFIX = ".damaged"
MANIFEST_SUFFIX = ".json"
TIME_FORMAT = "%Y-%m-%dT%H-%M-%S.%fZ"


class BackupFailed(Exception):
    """Raised when a backup cannot be made, read or restored; the message is a sentence for the operator."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file in a backup. `path` is relative to the data folder, `pieces` are the checksums of its parts in order."""

    path: str
    size: int
    mode: int
    modified_ns: int
    pieces: Sequence[str]


class Manifest(Struct, frozen=True, kw_only=True):
    """The contents of a backup. It includes everything that was acknowledged before `began_at`.

    `missing` are the keys of archive objects to which the data file refers, but which the archive did not have.
    """

    id: str
    began_at: datetime
    ended_at: datetime
    data: str
    version: str
    files: Sequence[StoredFile]
    missing: Sequence[str] = ()
    format: int = FORMAT

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


_manifests = Converter(Manifest)


class BackupStore:
    """An open folder with backups; `open_store` opens one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces = folder / "pieces"
        self._backups = folder / "backups"
        self._new_bytes = 0

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def new_bytes(self) -> int:
        """How many bytes this process has added to the folder."""
        return self._new_bytes

    def ids(self) -> Sequence[str]:
        """The complete backups, the oldest first."""
        names = [path.name for path in self._backups.glob(f"*{MANIFEST_SUFFIX}")]
        return sorted(name.removesuffix(MANIFEST_SUFFIX) for name in names)

    def read_manifest(self, backup_id: str) -> Manifest:
        if backup_id not in self.ids():
            raise BackupFailed(f"{self._folder} has no complete backup {backup_id}.")
        checksum, _, text = (self._backups / f"{backup_id}{MANIFEST_SUFFIX}").read_bytes().partition(b"\n")
        if checksum != _checksum(text).encode():
            raise BackupFailed(f"The list of files of the backup {backup_id} is damaged.")
        found = msgspec.json.decode(text)
        if found.get("format") != FORMAT:
            raise BackupFailed(f"The backup {backup_id} was made by a newer version of this program.")
        manifest = _manifests.from_builtins(found)
        for file in manifest.files:
            path = PurePosixPath(file.path)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise BackupFailed(f"The backup {backup_id} has a file outside the data folder: {file.path}.")
        return manifest

    def add_file(self, source: Path, path: str, known: StoredFile | None = None) -> StoredFile:
        """Store the content of a file; `known` is the same file in an earlier backup, which is not read again if its
        size and time are the same. Raises `FileNotFoundError`.
        """
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise BackupFailed(f"The name of {source!r} is not UTF-8, so the file cannot be stored.") from error
        with source.open("rb") as file:
            found = os.fstat(file.fileno())
            if (
                known
                and (known.size, known.modified_ns) == (found.st_size, found.st_mtime_ns)
                and self._has_all_pieces(known)
            ):
                return known
            pieces = [self._add_piece(piece) for piece in iter(lambda: file.read(PIECE_BYTES), b"")]
            size = file.tell()
        return StoredFile(
            path=path, size=size, mode=found.st_mode & 0o777, modified_ns=found.st_mtime_ns, pieces=pieces
        )

    def add_content(self, content: bytes, path: str, now: datetime) -> StoredFile:
        pieces = [self._add_piece(content[at : at + PIECE_BYTES]) for at in range(0, len(content), PIECE_BYTES)]
        nanoseconds = int(now.timestamp()) * 1_000_000_000
        return StoredFile(path=path, size=len(content), mode=0o600, modified_ns=nanoseconds, pieces=pieces)

    def add_manifest(self, manifest: Manifest) -> None:
        """Complete the backup by storing its manifest."""
        text = msgspec.json.encode(manifest)
        for folder in (*(each for each in self._pieces.iterdir() if each.is_dir()), self._pieces):
            make_durable(folder)
        write_durably(
            self._backups / f"{manifest.id}{MANIFEST_SUFFIX}",
            _checksum(text).encode() + b"\n" + text,
            UNFINISHED_SUFFIX,
        )
        make_durable(self._backups)

    def read_file(self, file: StoredFile) -> Iterator[bytes]:
        """The content of a file, a piece at a time. Raises `BackupFailed` if it is damaged."""
        size = 0
        for name in file.pieces:
            piece = self._read_piece(name)
            if piece is None:
                raise BackupFailed(f"{file.path} is damaged in the backup: a part of it is missing or has changed.")
            size += len(piece)
            yield piece
        if size != file.size:
            raise BackupFailed(f"{file.path} is damaged in the backup: it has {size} bytes, and had {file.size}.")

    def verify(self, backup_ids: Sequence[str]) -> Sequence[str]:
        """Read everything, and describe all damage in sentences.

        A damaged piece is moved aside, so that the next backup stores it again.
        """
        damage, states = [], dict[str, bool]()
        for backup_id in backup_ids:
            try:
                manifest = self.read_manifest(backup_id)
            except BackupFailed as failure:
                damage.append(str(failure))
                continue
            for file in manifest.files:
                for name in set(file.pieces) - set(states):
                    states[name] = self._read_piece(name) is not None
                    if not states[name]:
                        self._put_aside(name)
                if not all(states[name] for name in file.pieces):
                    damage.append(f"Backup {backup_id}: {file.path} is damaged.")
        return damage

    def remove_backups(self, backup_ids: Collection[str]) -> None:
        """Remove backups, and the pieces that no other backup needs. Raises `BackupFailed` if one of these is damaged.

        The manifest of a backup is removed before its pieces, so an interruption leaves too many pieces, never too few.
        """
        kept = [self.read_manifest(each) for each in self.ids() if each not in backup_ids]
        needed = {name for manifest in kept for file in manifest.files for name in file.pieces}
        for each in backup_ids:
            (self._backups / f"{each}{MANIFEST_SUFFIX}").unlink()
        make_durable(self._backups)
        for path in self._pieces.glob("*/*"):
            if path.name not in needed:
                path.unlink()

    def unfinished_path(self) -> Path:
        """A place for a file that is about to be added."""
        return self._folder / f"data{UNFINISHED_SUFFIX}"

    def remove_unfinished(self) -> None:
        """Remove unfinished files that interrupted backups left."""
        for path in (*self._folder.glob(f"data{UNFINISHED_SUFFIX}*"), *self._folder.glob(f"*/*{UNFINISHED_SUFFIX}")):
            path.unlink()
        for path in self._pieces.glob(f"*/*{UNFINISHED_SUFFIX}"):
            path.unlink()

    def _has_all_pieces(self, file: StoredFile) -> bool:
        return all(self._piece_path(name).exists() for name in file.pieces)

    def _add_piece(self, content: bytes) -> str:
        name = _checksum(content)
        path = self._piece_path(name)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_durably(path, content, UNFINISHED_SUFFIX)
            self._new_bytes += len(content)
        return name

    def _read_piece(self, name: str) -> bytes | None:
        """The content of a piece; None if it is damaged or missing."""
        with suppress(OSError):
            content = self._piece_path(name).read_bytes()
            if _checksum(content) == name:
                return content
        return None

    def _put_aside(self, name: str) -> None:
        path = self._piece_path(name)
        with suppress(FileNotFoundError):
            path.rename(path.with_name(name + DAMAGED_SUFFIX))

    def _piece_path(self, name: str) -> Path:
        return self._pieces / name[:2] / name


@contextmanager
def open_store(folder: Path, *, writes: bool, creates: bool = False) -> Iterator[BackupStore]:
    """Open a folder with backups. Until the end of the block, nobody else can write to it, and with `writes`, nobody
    else can open it. Raises `BackupFailed`.
    """
    if creates:
        _make_store(folder)
    if not (folder / "lock").is_file() or not (folder / "backups").is_dir():
        raise BackupFailed(f"{folder} has no backups of this broker.")
    with (folder / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_EX if writes else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BackupFailed(f"{folder} is in use: another backup is being made, checked or restored.") from error
        yield BackupStore(folder)


def _make_store(folder: Path) -> None:
    """Create the folder, which only its owner may read: backups have every event, and the key to the secrets."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "lock").exists():
        if any(each.name not in ("backups", "pieces") for each in folder.iterdir()):
            raise BackupFailed(f"{folder} is not empty, and has no backups of this broker: choose another folder.")
        for name in ("pieces", "backups"):
            (folder / name).mkdir(exist_ok=True, mode=0o700)
        (folder / "lock").touch(mode=0o600)
        make_durable(folder)


def backup_id(now: datetime) -> str:
    return now.astimezone(UTC).strftime(TIME_FORMAT)


def write_durably(path: Path, content: bytes, suffix: str) -> None:
    """Write a file that only its owner may read. It is written under another name first, so that a file with its own
    name is always complete.
    """
    unfinished = path.with_name(path.name + suffix)
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def make_durable(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
