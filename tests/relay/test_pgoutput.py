"""Reads the messages of PostgreSQL's log."""

import struct

import pytest

from nakadi_relay.feed import Progress
from nakadi_relay.pgoutput import Operation, Snapshot, TransactionDecoder, position_from_text, position_text

RELATION = b"R" + struct.pack("!I", 7) + b"public\0customer\0f" + struct.pack("!H", 2)
RELATION += b"\x01id\0" + struct.pack("!Ii", 23, -1) + b"\x00note\0" + struct.pack("!Ii", 3802, -1)
BEGIN = b"B" + struct.pack("!QQI", 100, 0, 42)
COMMIT = b"C" + struct.pack("!BQQQ", 0, 100, 120, 1_000_000)


def encode_row(*values):
    count = struct.pack("!H", len(values))
    return count + b"".join(
        each if each in (b"n", b"u") else b"t" + struct.pack("!I", len(each)) + each for each in values
    )


def encode_change(kind, *rows):
    return kind + struct.pack("!I", 7) + b"".join(rows)


def decode_last(*changes):
    decoder = TransactionDecoder()
    found = [decoder.decode(message) for message in (BEGIN, RELATION, *changes, COMMIT)]
    assert found[:-1] == [None] * (len(found) - 1)
    return found[-1]


def test_a_transaction_has_its_changes_and_its_place():
    """A transaction has its number, its places and its time from the log, and JSON stays JSON."""
    transaction = decode_last(encode_change(b"I", b"N", encode_row(b"1", b'{"a": [1.10]}')), b"O" + b"anything")
    assert (transaction.xid, transaction.commit_position, transaction.end_position) == (42, 100, 120)
    assert transaction.committed_at.isoformat() == "2000-01-01T00:00:01+00:00"
    [created] = transaction.changes
    assert (created.relation, created.operation) == ("public.customer", Operation.CREATE)
    assert created.row == b'{"id":"1","note":{"a": [1.10]}}'


def test_what_an_update_left_alone_is_in_the_old_row():
    """A large value that PostgreSQL does not send again comes from the old row."""
    [updated] = decode_last(encode_change(b"U", b"O", encode_row(b"1", b"[1]"), b"N", encode_row(b"2", b"u"))).changes
    assert updated.row == b'{"id":"2","note":[1]}'
    [short] = decode_last(encode_change(b"U", b"N", encode_row(b"2", b"n"))).changes
    assert short.row == b'{"id":"2","note":null}'


def test_a_deleted_row_is_as_it_was():
    """A deletion has only the old row."""
    [deleted] = decode_last(encode_change(b"D", b"O", encode_row(b"1", b"n"))).changes
    assert (deleted.operation, deleted.row) == (Operation.DELETE, b'{"id":"1","note":null}')


@pytest.mark.parametrize("text", ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"])
def test_places_are_written_as_they_are_read(text):
    """A place in the log is a number, so places can be compared."""
    assert position_text(position_from_text(text)) == text


@pytest.mark.parametrize(
    ("snapshot", "xid", "seen"),
    [
        ("10:20:11,14", 9, True),
        ("10:20:11,14", 11, False),
        ("10:20:11,14", 12, True),
        ("10:20:11,14", 20, False),
        ("10:20:", 21, False),
        # Numbers in the log have 32 bits, and wrap around after the highest one.
        (f"{2**32 + 5}:{2**32 + 9}:", 7, True),
        (f"{2**32 + 5}:{2**32 + 9}:", 9, False),
        (f"{2**32 + 5}:{2**32 + 9}:", 2**32 - 3, True),
        (f"{2**32 - 5}:{2**32 - 1}:", 3, False),
    ],
)
def test_a_snapshot_sees_what_was_committed_before(snapshot, xid, seen):
    """A snapshot sees the transactions that had ended when it was taken."""
    assert Snapshot.from_text(snapshot).sees(xid) is seen


def test_progress_is_the_place_and_the_snapshot():
    """The progress has the snapshot until the feed is past the snapshot's place in the log."""
    transaction = decode_last()
    sees = Snapshot.from_text("50:60:")
    assert Progress(position=100, snapshot=sees, snapshot_position=0).has(transaction)
    assert Progress(position=99, snapshot=sees, snapshot_position=100).has(transaction)
    assert not Progress(position=99, snapshot=sees, snapshot_position=99).has(transaction)
    assert not Progress(position=99, snapshot=Snapshot.from_text("40:60:42"), snapshot_position=100).has(transaction)
