"""The high-water mark of a data file: a small file beside it that records up to where the data file must be complete.

If SQLite's log was truncated or changed, SQLite takes the place of the damage for the end of the log, and it takes a
missing or empty data file for a new one. Without the mark, the broker would silently start with less than it has
acknowledged. So a `Marker` occasionally gives the data file a number, in a separate commit, and when that commit is
durable, it writes the number into the mark. Commits become durable in order: if the file has a number, it also has
everything committed before it. `check_against_mark` compares the two at the next start.

The mark never claims more than was committed, no matter when a process ends. Other commits are not affected, except
that they occasionally wait for their turn. Events acknowledged after the last mark may be lost without a trace, unless
SQLite's own log shows it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import orjson
from msgspec import Struct
from msgspec.structs import asdict, replace

from nakadi.engines.sqlite.file import (
    WRITE_TIMEOUT_SECONDS,
    BadDataFile,
    begin_write_transaction,
    cannot_be_opened_error,
    open_connection,
    roll_back,
)

log = logging.getLogger(__name__)

MARK_FORMAT = 1
# The data file has its number in the revision of a document with no other use, so that the format of the file stays the
# same.
SELECT_MARK_NUMBER = "SELECT revision FROM documents WHERE kind = 'data-file' AND key = 'mark'"
PUT_MARK_NUMBER = """
    INSERT INTO documents (kind, key, revision, entry) VALUES ('data-file', 'mark', ?1, json_array('mark', ?1, NULL))
    ON CONFLICT (kind, key) DO UPDATE SET revision = ?1, entry = json_array('mark', ?1, NULL)
"""
SELECT_IDENTITY = "SELECT identity FROM log_index"
SELECT_KEYS = "SELECT key FROM documents WHERE kind = ? ORDER BY key LIMIT ?"
KINDS_IN_MARK = ("event-types", "subscriptions", "storages")
SELECT_LOG_ENDS = """
    SELECT topics.name || '/' || logs.partition, coalesce(
        (SELECT first + count FROM frames WHERE log = logs.id ORDER BY first DESC LIMIT 1), logs.oldest)
    FROM logs JOIN topics ON topics.id = logs.topic ORDER BY logs.id LIMIT ?
"""
SELECT_EVENT_TYPE_OF_TOPIC = "SELECT key FROM documents WHERE kind = 'event-types' AND instr(entry, ?) LIMIT 1"

# A half-written mark looks damaged, so the check is repeated: by the last check, the writer has finished.
CHECK_ATTEMPTS, SECONDS_BETWEEN_CHECKS = 10, 0.1

# How many keys a mark lists, for people who look for missing data; the number alone shows that data is missing.
MAX_LISTED_KEYS = 10_000
MAX_NAMES_SHOWN = 5
# The largest file whose whole structure is checked at a start: that takes only a moment.
MAX_FULLY_CHECKED_BYTES = 32_000_000

REMEDY_MESSAGE = (
    "Put back the files that belong together, or start once with --accept-loss: the broker then accepts the file "
    "as complete, and writes a new mark."
)


class DataFileMark(Struct, frozen=True, kw_only=True):
    """What a data file contained when the mark was written. `keys` are the keys of its documents by kind, `ends` the
    next offsets of its logs.
    """

    file: str
    number: int
    at: str
    keys: Mapping[str, list[str]]
    ends: Mapping[str, int]


class DamagedMark(Exception):
    """Raised when a mark cannot be read; the message says why."""


def mark_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.mark")


# At the start


def check_against_mark(path: Path, *, accept_loss: bool) -> int:
    """Raise `BadDataFile` if a data file has lost data, unless that is accepted; nothing is changed here.

    Returns the number that the next mark has to exceed.
    """
    try:
        mark = _read_mark(mark_path(path))
    except DamagedMark as damage:
        log.warning("The mark %s cannot be read (%s): the data file is accepted as it is", mark_path(path), damage)
        mark = None
    loss = _describe_missing(path, mark)
    if loss is None:
        return 0
    if not accept_loss:
        raise BadDataFile(f"{loss} {REMEDY_MESSAGE}")
    log.warning("Accepting the loss: %s", loss)
    return 0 if mark is None else mark.number


def _describe_missing(path: Path, mark: DataFileMark | None) -> str | None:
    """A description of missing data, in sentences; None if none is known to be missing."""
    if not path.exists() or path.stat().st_size == 0:
        state = "empty" if path.exists() else "not there"
        found = f"The data file {path} is {state}"
        return None if mark is None else f"{found}, and it was marked at {mark.at}.{_describe_all_content(mark)}"
    try:
        with contextlib.closing(open_read_only(path)) as connection:
            loss = _describe_rollback(path, connection, mark) or _describe_damage(path, connection)
        with contextlib.closing(open_read_only(path)) as connection:
            return loss or _describe_cut_log(path, connection)
    except sqlite3.Error:
        return None  # opening the file later reports what is wrong


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing in the file. With an ordinary connection, the last one to close would remove
    the log together with its content."""
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=WRITE_TIMEOUT_SECONDS)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _describe_rollback(path: Path, connection: sqlite3.Connection, mark: DataFileMark | None) -> str | None:
    if mark is None:
        return None
    if (file := _query_value(connection, SELECT_IDENTITY)) != mark.file:
        return f"{path} is not the data file that {mark_path(path)} belongs to (it is {file}, not {mark.file})."
    number = _query_value(connection, SELECT_MARK_NUMBER) or 0
    if number >= mark.number:
        return None
    return (
        f"The data file {path} has less than it had: it was marked with number {mark.number} at {mark.at}, "
        f"and what is there ends at number {number}.{_describe_missing_content(connection, mark)}"
    )


def _describe_missing_content(connection: sqlite3.Connection, mark: DataFileMark) -> str:
    lines = []
    for kind, keys in mark.keys.items():
        gone = sorted(set(keys) - set(_read_document_keys(connection, kind)))
        lines += [f"{kind.replace('-', ' ')} {_first_names_and_count(gone)}"] if gone else []
    ends = _read_next_offset_by_log(connection)
    shorter = [
        f"{_log_display_name(connection, name)} from offset {ends.get(name, 0)} to {end - 1}"
        for name, end in mark.ends.items()
        if ends.get(name, 0) < end
    ]
    lines += [f"events of {_first_names_and_count(shorter)}"] if shorter else []
    return f" Missing, as far as it is known: {'; '.join(lines)}." if lines else ""


def _describe_all_content(mark: DataFileMark) -> str:
    counts = [f"{len(keys)} {kind.replace('-', ' ')}" for kind, keys in mark.keys.items()]
    return f" It had {', '.join(counts)}, and {sum(mark.ends.values())} offsets of events."


def _log_display_name(connection: sqlite3.Connection, name: str) -> str:
    topic, _, partition = name.rpartition("/")
    event_type = _query_value(connection, SELECT_EVENT_TYPE_OF_TOPIC, f'"{topic}"') or f"topic {topic}"
    return f"{event_type}, partition {partition},"


def _first_names_and_count(names: list[str]) -> str:
    more = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _describe_damage(path: Path, connection: sqlite3.Connection) -> str | None:
    """SQLite's report about a file that is small enough to check."""
    pages, page_size = _query_value(connection, "PRAGMA page_count"), _query_value(connection, "PRAGMA page_size")
    if pages * page_size > MAX_FULLY_CHECKED_BYTES:
        return None
    found = _query_value(connection, "PRAGMA quick_check(1)")
    return None if found == "ok" else f"The data file {path} is damaged: {' '.join(str(found).split())}."


def _describe_cut_log(path: Path, connection: sqlite3.Connection) -> str | None:
    """A description of the damage if SQLite's log contains durable transactions after the place where it ends;
    otherwise None.

    SQLite reads the log up to the first damaged frame. A transaction is on the disk before the next one begins. So if
    two transactions end after that place, the first was once complete, and was changed later. A single end may belong
    to a transaction that was never acknowledged, because of a power cut. (The formats:
    https://www.sqlite.org/walformat.html and fileformat2.html#walformat.)
    """
    wal = path.with_name(f"{path.name}-wal")
    before = None
    for _ in range(CHECK_ATTEMPTS):
        found = _read_frames_behind_end(wal, path.with_name(f"{path.name}-shm"), connection)
        if found is None or found.transaction_count == 0:
            return None
        if found == before and found.transaction_count > 1:
            return (
                f"{wal} is damaged behind {found.valid_frame_count} pages: "
                f"at least {found.transaction_count - 1} transactions after that cannot be read."
            )
        before = found
        time.sleep(SECONDS_BETWEEN_CHECKS)
    log.warning("The log %s ends in an incomplete transaction, which is ignored", wal)
    return None


class _FramesBehindEnd(Struct, frozen=True):
    """How many frames of a log are valid, and how many transactions end in the frames after these."""

    valid_frame_count: int
    transaction_count: int


def _read_frames_behind_end(wal: Path, index: Path, connection: sqlite3.Connection) -> _FramesBehindEnd | None:
    """Count the frames and transactions; None if the log cannot be read, or is being written: then its writer has all
    of it.
    """
    # After a read of the data file, the index of the log exists, and belongs to this log.
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    try:
        with wal.open("rb") as frames, index.open("rb") as header:
            valid = _read_valid_frame_count(header)
            found = _FramesBehindEnd(valid, _count_transaction_ends_behind(frames, valid))
            return found if _read_valid_frame_count(header) == valid else None
    except (OSError, struct.error):
        return None


def _read_valid_frame_count(index: BinaryIO) -> int:
    index.seek(16)
    (frames,) = struct.unpack("=I", index.read(4))
    return int(frames)


def _count_transaction_ends_behind(frames: BinaryIO, valid: int) -> int:
    """The number of frames after the valid ones that end a transaction and were written since the log began again."""
    page_size, salts = struct.unpack(">8xI4x8s", frames.read(24))
    length, size = 24 + page_size, frames.seek(0, os.SEEK_END)
    ends = 0
    for place in range(32 + valid * length, size - length + 1, length):
        frames.seek(place)
        pages, salts_here = struct.unpack(">4xI8s", frames.read(16))
        ends += pages > 0 and salts_here == salts
    return ends


def mark_of(connection: sqlite3.Connection, now: datetime) -> DataFileMark:
    """The mark for the present content of a data file, with the last number that the file was given."""
    return DataFileMark(
        file=_query_value(connection, SELECT_IDENTITY),
        number=_query_value(connection, SELECT_MARK_NUMBER) or 0,
        at=now.astimezone(UTC).isoformat(timespec="seconds"),
        keys={kind: _read_document_keys(connection, kind) for kind in KINDS_IN_MARK},
        ends=_read_next_offset_by_log(connection),
    )


# While the broker is at work


class Marker:
    """Writes the mark of a data file on demand, if anything was committed since. Use it in one thread at a time."""

    def __init__(self, path: Path, now: Callable[[], datetime], *, above: int = 0) -> None:
        self._path = path
        self._now = now
        self._connection = open_connection(path, WRITE_TIMEOUT_SECONDS)
        try:
            self._truncate_log()
        except sqlite3.OperationalError as error:
            self._connection.close()
            raise cannot_be_opened_error(path, error) from error
        self._above = above
        self._seen: int | None = None
        self._closed = False

    def write_mark_if_changed(self) -> None:
        """Give the file the next number if it has changed, and write the number into the mark.

        The broker continues without a mark, or with an old one; the next attempt may succeed.
        """
        try:
            self._mark_if_changed()
        except (sqlite3.Error, OSError) as error:
            log.warning("Marking the data file %s failed, trying again later: %s", self._path, error)

    def close(self) -> None:
        """Write a last mark. A repeated call changes nothing."""
        if not self._closed:
            self._closed = True
            self.write_mark_if_changed()
            self._connection.close()

    def _mark_if_changed(self) -> None:
        seen = _query_value(self._connection, "PRAGMA data_version")
        if seen == self._seen:
            return
        # The content is read before the number is assigned, because the mark must not cover later changes.
        mark = mark_of(self._connection, self._now())
        write_mark(mark_path(self._path), replace(mark, number=self._store_next_number()))
        self._seen = seen

    def _truncate_log(self) -> None:
        """Truncate the log, if no other process is running: pages that a crash left after its end are useless."""
        self._connection.execute("PRAGMA busy_timeout = 0").close()
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        self._connection.execute(f"PRAGMA busy_timeout = {int(WRITE_TIMEOUT_SECONDS * 1000)}").close()

    def _store_next_number(self) -> int:
        begin_write_transaction(self._connection, WRITE_TIMEOUT_SECONDS)
        try:
            number = max(_query_value(self._connection, SELECT_MARK_NUMBER) or 0, self._above) + 1
            self._connection.execute(PUT_MARK_NUMBER, (number,))
            self._connection.execute("COMMIT")
        except BaseException:
            roll_back(self._connection)
            raise
        return int(number)


def _query_value(connection: sqlite3.Connection, statement: str, *values: object) -> Any:
    found = connection.execute(statement, values).fetchone()
    return None if found is None else found[0]


def _read_document_keys(connection: sqlite3.Connection, kind: str) -> list[str]:
    return [key for (key,) in connection.execute(SELECT_KEYS, (kind, MAX_LISTED_KEYS)).fetchall()]


def _read_next_offset_by_log(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute(SELECT_LOG_ENDS, (MAX_LISTED_KEYS,)).fetchall())


def _read_mark(path: Path) -> DataFileMark | None:
    try:
        checksum, _, text = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedMark(error.strerror) from error
    if checksum != _checksum(text):
        raise DamagedMark("its checksum is wrong")
    content = orjson.loads(text)
    if content.pop("format") != MARK_FORMAT:
        raise DamagedMark("a newer version has written it")
    return DataFileMark(**content)


def write_mark(path: Path, mark: DataFileMark) -> None:
    """Replace the mark in one step: a reader finds the old one or the new one."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with new.open("wb") as file:
        file.write(mark_content(mark))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def mark_content(mark: DataFileMark) -> bytes:
    text = orjson.dumps({"format": MARK_FORMAT, **asdict(mark)}, option=orjson.OPT_APPEND_NEWLINE)
    return _checksum(text) + b"\n" + text


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
