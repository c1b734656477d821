"""Properties of the registry in a SQLite file that go beyond the contract of every registry."""

import sqlite3
from contextlib import closing

import pytest

from nakadi.engines.sqlite.registry import LIST_DOCUMENTS, SqliteRegistry
from nakadi.model.outcomes import Unavailable
from nakadi.ports.registry import ChangedMeanwhile, CheckRevision, Document, PutDocument


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def registry(path):
    registry = SqliteRegistry(path)
    yield registry
    registry.close()


def test_documents_outlive_the_process(path, registry):
    """Documents and their revisions survive a restart."""
    registry.write(PutDocument("thing", "a", {"n": 1}))
    registry.write(PutDocument("thing", "a", {"n": 2}))
    registry.close()
    again = SqliteRegistry(path)
    assert again.get("thing", "a") == Document("a", {"n": 2}, 2)
    again.close()


def test_a_list_is_one_walk_along_the_index(path, registry):
    """Listing a kind neither sorts nor reads other kinds."""
    registry.write(PutDocument("thing", "a", {}))
    connection = sqlite3.connect(path)
    wanted = {"kind": "thing", "prefix": "a", "after": "", "end": "b", "limit": 10}
    plan = [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {LIST_DOCUMENTS}", wanted)]
    connection.close()
    assert any("SEARCH documents USING PRIMARY KEY (kind=? AND key>?" in step for step in plan)
    assert not any("TEMP B-TREE" in step or "SCAN documents" in step for step in plan)


def test_the_last_page_costs_as_much_as_the_first(path, registry):
    """Listing page by page reads each document once, not again with each later page."""
    registry.write(PutDocument("thing", "a", {}))
    with closing(sqlite3.connect(path)) as connection:
        rows = [("thing", f"b{number:04}", f'["b{number:04}",1,{{}}]') for number in range(1000)]
        connection.executemany("INSERT INTO documents VALUES (?1, ?2, 1, ?3)", rows).close()
        steps = [
            count_steps(connection, {"kind": "thing", "prefix": prefix, "after": after, "end": None, "limit": 10})
            for prefix, after in (("", ""), ("b", ""), ("", "b0900"), ("b", "b0900"))
        ]
    assert max(steps) < 1.2 * min(steps)


def count_steps(connection, wanted):
    """Read a list, and count the instructions that SQLite's virtual machine executes."""
    steps = 0

    def count():
        nonlocal steps
        steps += 1

    connection.set_progress_handler(count, 1)
    connection.execute(LIST_DOCUMENTS, wanted).fetchall()
    connection.set_progress_handler(None, 1)
    return steps


def test_what_cannot_be_written_down_changes_nothing(registry):
    """A body that is not JSON is the caller's mistake, and no part of the write is stored."""
    with pytest.raises(TypeError):
        registry.write(PutDocument("thing", "a", {}), PutDocument("thing", "b", {"set": {1, 2}}))
    assert list(registry.list("thing")) == []


def test_a_file_that_stays_locked_is_reported(path):
    """If another process locks the file for too long, a write raises `Unavailable`, and a read does not wait."""
    registry = SqliteRegistry(path, patience=0.05)
    registry.write(PutDocument("thing", "a", {}))
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        registry.write(PutDocument("thing", "b", {}))
    assert len(registry.list("thing")) == 1
    other.close()
    registry.write(PutDocument("thing", "b", {}))
    registry.close()


def test_a_change_that_was_refused_says_what_it_met():
    """The message of a refused change names the document and the expected revision."""
    assert "thing 'a' is not at revision 7" in str(ChangedMeanwhile(CheckRevision("thing", "a", 7)))
