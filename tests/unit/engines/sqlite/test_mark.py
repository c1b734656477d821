"""The mark beside a data file: a start notices losses, and notices none where nothing is missing."""

import os
import shutil
import sqlite3
import struct
from contextlib import closing
from datetime import UTC, datetime

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.engines.sqlite.event_log import SqliteLog
from nakadi.engines.sqlite.file import BadDataFile, SqliteFile
from nakadi.engines.sqlite.mark import Marker, check_against_mark, mark_path
from nakadi.engines.sqlite.registry import SqliteRegistry
from nakadi.model.events import Record
from nakadi.ports.clock import SystemClock
from nakadi.ports.registry import ABSENT_REVISION, PutDocument
from tests.support.logs import records_of_this_thread
from tests.support.until_killed import lines_until_killed

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class DataFile:
    """A data file in use by a broker."""

    def __init__(self, path):
        self.path = path
        self.registry = SqliteRegistry(path)
        self.log = SqliteLog(path, SystemClock())
        self.marker = Marker(path, lambda: NOON)

    def register(self, *names):
        for name in names:
            body = {"name": name, "timelines": [{"topic": f"topic-of-{name}"}]}
            self.registry.write(PutDocument("event-types", name, body, expected_revision=ABSENT_REVISION))
            self.log.create_topic(f"topic-of-{name}", 2)

    def publish(self, name, count):
        run_blocking(self.log.append(f"topic-of-{name}", {0: [Record(b"{}") for _ in range(count)]}))

    def close(self):
        self.log.close()
        self.registry.close()
        self.marker.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def working_file(path):
    """A data file in use, with a mark, an event type and three events."""
    file = DataFile(path)
    file.register("order.created")
    file.publish("order.created", 3)
    file.marker.write_mark_if_changed()
    yield file
    file.close()


def simulate_crash(file, folder):
    """Copy everything that would be on the disk if the machine lost power now."""
    (folder / "crashed").mkdir(parents=True)
    for each in file.path.parent.glob(f"{file.path.name}*"):
        shutil.copy(each, folder / "crashed")
    return folder / "crashed" / file.path.name


def wal_of(path):
    return path.with_name(f"{path.name}-wal")


def contents(folder):
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file() and each.suffix != ".db-shm"}


def refusal(path):
    """The error of a refused start, which does not change the files."""
    before = contents(path.parent)
    with pytest.raises(BadDataFile) as refused:
        check_against_mark(path, accept_loss=False)
    after = contents(path.parent)
    # Opening a file that was closed leaves an empty log behind.
    assert {name: text for name, text in after.items() if text or name in before} == before
    return str(refused.value)


def number_in(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT revision FROM documents WHERE kind = 'data-file'").fetchone()[0]


def flip_byte(path, at):
    whole = bytearray(path.read_bytes())
    whole[at] ^= 0xFF
    path.write_bytes(whole)


def restart_broker(path, above=0):
    with closing(Marker(path, lambda: NOON, above=above)) as marker:
        marker.write_mark_if_changed()


# A complete file


def test_a_new_folder_is_fine(path):
    """Without a data file and a mark, nothing is lost, and nothing is created."""
    assert check_against_mark(path, accept_loss=False) == 0
    assert list(path.parent.iterdir()) == []


def test_a_file_without_a_mark_is_taken_as_it_is(path):
    """A data file from a version without marks is accepted, and gets a mark."""
    SqliteFile(path).close()

    assert check_against_mark(path, accept_loss=False) == 0
    restart_broker(path)
    assert mark_path(path).exists()


def test_a_file_that_was_closed_in_good_order_is_fine(working_file):
    """A file that was closed contains everything that its mark claims."""
    working_file.close()

    assert check_against_mark(working_file.path, accept_loss=False) == 0


def test_a_file_that_was_not_closed_is_fine(working_file, tmp_path):
    """A crash loses nothing that was marked."""
    working_file.publish("order.created", 5)

    assert check_against_mark(simulate_crash(working_file, tmp_path), accept_loss=False) == 0


def test_a_file_that_someone_works_with_is_fine(working_file):
    """A second process finds that a file is complete while the first one writes to it."""
    for _ in range(50):
        working_file.publish("order.created", 1)
        assert check_against_mark(working_file.path, accept_loss=False) == 0


def test_two_processes_mark_one_file(working_file):
    """In any order of marking, the mark never claims more than the file contains."""
    with closing(Marker(working_file.path, lambda: NOON)) as other:
        for marker in (other, working_file.marker, other, working_file.marker):
            working_file.publish("order.created", 1)
            marker.write_mark_if_changed()
            assert check_against_mark(working_file.path, accept_loss=False) == 0


def test_what_did_not_change_is_not_marked_again(working_file):
    """Without commits, neither the file nor the mark is written."""
    before = contents(working_file.path.parent)
    for _ in range(3):
        working_file.marker.write_mark_if_changed()

    assert contents(working_file.path.parent) == before
    working_file.publish("order.created", 1)
    working_file.marker.write_mark_if_changed()
    assert number_in(working_file.path) == 2


def test_a_mark_that_cannot_be_written_stops_nothing(working_file, monkeypatch, caplog):
    """If a broker cannot write its mark, it continues with the old one, which is still valid."""
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    working_file.publish("order.created", 1)
    working_file.marker.write_mark_if_changed()

    assert "Marking the data file" in caplog.text
    assert check_against_mark(working_file.path, accept_loss=False) == 0


@pytest.mark.parametrize(
    "change", [lambda mark: flip_byte(mark, 30), lambda mark: mark.write_bytes(b""), lambda mark: flip_byte(mark, 2)]
)
def test_a_damaged_mark_is_reported_and_passed_over(working_file, change, caplog):
    """A mark that cannot be read does not prevent the start, but is reported; the next mark is valid again."""
    working_file.close()
    change(mark_path(working_file.path))

    assert check_against_mark(working_file.path, accept_loss=False) == 0
    assert "its checksum is wrong" in caplog.text
    restart_broker(working_file.path)
    caplog.clear()
    assert check_against_mark(working_file.path, accept_loss=False) == 0
    assert records_of_this_thread(caplog) == []


# Files with a loss


def test_a_data_file_that_is_gone_is_missed(working_file):
    """If there is a mark but no data file, none is created: a new file would look complete."""
    working_file.close()
    working_file.path.unlink()

    said = refusal(working_file.path)
    assert f"The data file {working_file.path} is not there, and it was marked at 2026-11-21T12:00:00+00:00." in said
    assert "It had 1 event types, 0 subscriptions, 0 storages, and 3 offsets of events." in said
    assert "--accept-loss" in said


def test_an_emptied_data_file_is_missed(working_file):
    """SQLite treats an empty file as a new one; with a mark beside it, the file is refused."""
    working_file.close()
    working_file.path.write_bytes(b"")

    assert "is empty" in refusal(working_file.path)


def test_an_older_copy_is_noticed(working_file, tmp_path):
    """After a backup was restored, the message says which event types are missing, and which events of other event
    types.
    """
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(working_file.path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    working_file.register("order.paid", "order.sent")
    working_file.publish("order.created", 4)
    working_file.publish("order.paid", 2)
    working_file.close()
    copy.replace(working_file.path)

    said = refusal(working_file.path)
    assert "has less than it had: it was marked with number 2 at 2026-11-21T12:00:00+00:00" in said
    assert "what is there ends at number 1." in said
    assert "Missing, as far as it is known: event types order.paid, order.sent;" in said
    assert "events of order.created, partition 0, from offset 3 to 6" in said
    assert "topic topic-of-order.paid, partition 0, from offset 0 to 1." in said


def test_another_data_file_is_noticed(working_file, tmp_path):
    """A mark belongs to one data file, and no other data file is accepted with it."""
    working_file.close()
    other = tmp_path / "other" / "nakadi.db"
    SqliteFile(other).close()
    other.replace(working_file.path)

    assert "is not the data file that" in refusal(working_file.path)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_log_that_was_cut_is_noticed(working_file, tmp_path, share):
    """The broker notices if frames that were marked are missing from SQLite's log."""
    working_file.register("order.paid")
    working_file.publish("order.paid", 4)
    working_file.marker.write_mark_if_changed()
    path = simulate_crash(working_file, tmp_path)
    os.truncate(wal_of(path), int(wal_of(path).stat().st_size * share))

    assert "has less than it had" in refusal(path)


def test_a_log_that_is_gone_is_noticed(working_file, tmp_path):
    """If a data file was copied without its log, the broker notices that the log's content is missing."""
    path = simulate_crash(working_file, tmp_path)
    wal_of(path).unlink()

    assert "has less than it had" in refusal(path) or "damaged" in refusal(path)


def test_a_log_that_was_changed_is_noticed_without_a_mark(working_file, tmp_path):
    """If complete transactions follow a damaged part of SQLite's log, that part was acknowledged, so the start is
    refused even without a mark.
    """
    for _ in range(5):
        working_file.publish("order.created", 1)
    path = simulate_crash(working_file, tmp_path)
    mark_path(path).unlink()
    flip_byte(wal_of(path), wal_of(path).stat().st_size // 2)

    assert "is damaged behind" in refusal(path)


def test_half_a_transaction_at_the_end_is_reported_and_left_out(working_file, tmp_path, caplog):
    """A transaction that was being written when the power failed was never acknowledged, so it does not prevent the
    start."""
    working_file.publish("order.created", 1)
    path = simulate_crash(working_file, tmp_path)
    flip_byte(wal_of(path), wal_of(path).stat().st_size - 10)

    assert check_against_mark(path, accept_loss=False) == 0
    assert "ends in an incomplete transaction" in caplog.text


def test_pages_of_a_former_round_of_the_log_are_no_loss(working_file, tmp_path):
    """SQLite overwrites its log from the beginning repeatedly; older pages at its end have long been copied, so they
    are no loss.
    """
    for _ in range(20):
        working_file.publish("order.created", 1)
    with closing(sqlite3.connect(working_file.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
    working_file.publish("order.created", 1)

    assert check_against_mark(simulate_crash(working_file, tmp_path), accept_loss=False) == 0


def test_a_damaged_page_is_noticed(working_file):
    """A small data file is checked at the start, and the damage that SQLite finds is reported."""
    working_file.close()
    with working_file.path.open("r+b") as file:
        (size,) = struct.unpack_from(">H", working_file.path.read_bytes(), 16)
        file.seek(3 * size)
        file.write(b"\xff" * size)

    assert "is damaged: " in refusal(working_file.path)


# Accepting the loss


def test_an_accepted_loss_is_the_new_state(working_file, caplog):
    """If the operator accepts a loss, the broker continues with the remaining events, and does not refuse to start
    again."""
    working_file.close()
    working_file.path.unlink()

    above = check_against_mark(working_file.path, accept_loss=True)
    assert "Accepting the loss: The data file" in caplog.text
    restart_broker(working_file.path, above)
    assert check_against_mark(working_file.path, accept_loss=False) == 0


def test_what_was_lost_cannot_come_back_unnoticed(working_file, tmp_path):
    """After an accepted loss, a file from before the loss counts as an older one, however many events it has."""
    for _ in range(3):
        working_file.publish("order.created", 1)
        working_file.marker.write_mark_if_changed()
    whole = simulate_crash(working_file, tmp_path / "whole")
    path = simulate_crash(working_file, tmp_path / "cut")
    os.truncate(wal_of(path), wal_of(path).stat().st_size // 2)
    restart_broker(path, check_against_mark(path, accept_loss=True))
    assert check_against_mark(path, accept_loss=False) == 0
    with closing(sqlite3.connect(whole)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole.replace(path)

    assert "has less than it had" in refusal(path)


def test_an_accepted_damage_of_the_log_is_put_away(working_file, tmp_path):
    """Once damage in SQLite's log was accepted, the next start does not find the pages after the damage again, even
    after a crash.
    """
    for _ in range(5):
        working_file.publish("order.created", 1)
    path = simulate_crash(working_file, tmp_path)
    flip_byte(wal_of(path), wal_of(path).stat().st_size // 2)
    with closing(Marker(path, lambda: NOON, above=check_against_mark(path, accept_loss=True))) as marker:
        marker.write_mark_if_changed()
        assert check_against_mark(path, accept_loss=False) == 0


def test_a_process_that_is_killed_is_never_refused(path):
    """Whenever a process that commits and marks is killed, the next start finds that the file is complete."""
    for _ in range(5):
        lines_until_killed("mark_until_killed.py", path, between=(0.0, 0.15))

        assert check_against_mark(path, accept_loss=False) == 0
