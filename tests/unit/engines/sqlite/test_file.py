"""The SQLite file: which files are opened, and which are refused with a message."""

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nakadi.engines.sqlite.file import (
    CREATE_TABLES,
    FILE_VERSION,
    MAX_IDLE_CONNECTIONS,
    BadDataFile,
    SqliteFile,
    path_in_url,
)
from nakadi.model.outcomes import Unavailable
from tests.support.patience import PATIENCE


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nakadi.db"


@pytest.fixture
def file(path):
    file = SqliteFile(path, patience=5.0)
    yield file
    file.close()


def create_filled_file(path):
    """A data file with a topic and some events, closed properly."""
    file = SqliteFile(path)
    with file.write_transaction() as connection:
        connection.execute("INSERT INTO topics (name, sealed) VALUES ('t', 0)")
        connection.executemany(
            "INSERT INTO frames (log, first, count, stored_at, size, body) VALUES (1, ?, 1, 0, 4000, zeroblob(4000))",
            [(number,) for number in range(200)],
        )
    file.close()


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite:///data/nakadi.db", "data/nakadi.db"), ("sqlite:////var/nakadi.db", "/var/nakadi.db")]
)
def test_a_url_names_a_path(url, path):
    """Three slashes begin a relative path, and four an absolute one."""
    assert str(path_in_url(url)) == path


@pytest.mark.parametrize("url", ["sqlite:", "sqlite:///", "sqlite://data.db", "memory:"])
def test_a_url_without_a_path_is_refused(url):
    """The message about a URL without a file shows how to write one."""
    with pytest.raises(BadDataFile, match=r"sqlite:///folder/file\.db"):
        path_in_url(url)


def test_a_new_file_is_made_with_its_folder(tmp_path):
    """A missing file is created with its folder, and opened again later."""
    path = tmp_path / "new" / "folder" / "nakadi.db"
    create_filled_file(path)
    file = SqliteFile(path)
    with file.read_connection() as connection:
        assert connection.execute("SELECT count(*) FROM frames").fetchone() == (200,)
    file.close()


def test_a_new_file_is_made_once(path):
    """If many processes open a missing file at once, all of them use the same new file."""
    with ThreadPoolExecutor(8) as threads:
        files = [each.result(PATIENCE) for each in [threads.submit(SqliteFile, path) for _ in range(8)]]
    with files[0].write_transaction() as connection:
        connection.execute("INSERT INTO topics (name, sealed) VALUES ('t', 0)")
    for file in files:
        with file.read_connection() as connection:
            assert connection.execute("SELECT count(*) FROM topics").fetchone() == (1,)
        file.close()


def test_an_empty_file_becomes_a_data_file(path):
    """An empty file, such as a killed process may leave, counts as a new one."""
    path.touch()
    create_filled_file(path)


def test_a_file_from_an_older_version_is_brought_up_to_date(path):
    """A table that is missing from a file of the first version is created on opening; the content stays, and this
    happens once."""
    create_filled_file(path)
    with sqlite3.connect(path) as connection:
        before = connection.execute("SELECT * FROM topics").fetchall()
        first = " ".join(CREATE_TABLES)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        for (name,) in names.fetchall():
            if f"CREATE TABLE {name} " not in first:
                connection.execute(f"DROP TABLE {name}")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with ThreadPoolExecutor(4) as threads:
        files = [each.result(PATIENCE) for each in [threads.submit(SqliteFile, path) for _ in range(4)]]
    with files[0].read_connection() as connection:
        assert connection.execute("SELECT * FROM topics").fetchall() == before
        assert connection.execute("SELECT count(*) FROM log_index").fetchone() == (1,)
        assert connection.execute("PRAGMA user_version").fetchone() == (FILE_VERSION,)
    for file in files:
        file.close()


def test_a_file_from_a_newer_version_is_refused(path):
    """A file of a format that this version does not know is refused, and the message names the reason."""
    create_filled_file(path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {FILE_VERSION + 1}")
    connection.close()
    with pytest.raises(BadDataFile, match="newer version"):
        SqliteFile(path)


def test_a_file_of_another_program_is_refused(path):
    """A SQLite file of another program stays unchanged."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(BadDataFile, match="another program"):
        SqliteFile(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"x", b"SQLite format 3\0", b"# notes\n" * 1000, bytes(5000)])
def test_a_file_that_is_something_else_is_refused(path, content):
    """A file that is not a data file, or only the beginning of one, stays unchanged."""
    path.write_bytes(content)
    with pytest.raises(BadDataFile, match=r"nakadi\.db"):
        SqliteFile(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kept", [0.01, 0.3, 0.9])
def test_a_torn_file_is_refused(path, kept):
    """A file whose end is missing is refused with the message that it is damaged."""
    create_filled_file(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(BadDataFile, match="damaged"):
        SqliteFile(path)


def test_a_file_with_a_damaged_beginning_is_refused(path):
    """A file whose tables cannot be read is refused with the message that it is damaged."""
    create_filled_file(path)
    whole = bytearray(path.read_bytes())
    whole[100:4096] = b"\xff" * 3996
    path.write_bytes(whole)
    with pytest.raises(BadDataFile, match="damaged"):
        SqliteFile(path)


def test_what_cannot_be_opened_is_refused(tmp_path):
    """A folder in place of the file, or a file in place of its folder, is reported with a message."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder", tmp_path / "file" / "nakadi.db"):
        with pytest.raises(BadDataFile, match="cannot be opened"):
            SqliteFile(path)


def test_a_block_that_raises_changes_nothing(file):
    """A transaction is rolled back when its block raises, and the connection can be used again."""

    def fail() -> None:
        with file.write_transaction() as connection:
            connection.execute("INSERT INTO topics (name, sealed) VALUES ('t', 0)")
            raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            fail()
    with file.write_transaction() as connection:
        assert connection.execute("SELECT count(*) FROM topics").fetchone() == (0,)


def test_errors_of_sqlite_say_that_nothing_is_known(file):
    """Any error of SQLite becomes `Unavailable`, with SQLite's message."""
    with pytest.raises(Unavailable, match="no such table"), file.read_connection() as connection:
        connection.execute("SELECT * FROM no_such_place")


def test_a_writer_waits_for_its_turn(file):
    """Writers take turns, and none is refused while the others are quick."""
    turns: list[int] = []

    def write(number: int) -> None:
        with file.write_transaction() as connection:
            connection.execute("INSERT INTO topics (name, sealed) VALUES (?, 0)", (f"{number}",))
            turns.append(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(40)))
    assert sorted(turns) == list(range(40))


def test_a_writer_gives_up_after_a_while(path, file):
    """A writer that gets no turn in time raises `Unavailable`, and the writer that holds the turn continues."""
    impatient = SqliteFile(path, patience=0.1)
    with file.write_transaction() as connection:
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="locked"), impatient.write_transaction():
            pass
        assert time.monotonic() - begun >= 0.1
        connection.execute("INSERT INTO topics (name, sealed) VALUES ('t', 0)")
    with impatient.read_connection() as connection:
        assert connection.execute("SELECT count(*) FROM topics").fetchone() == (1,)
    impatient.close()


def test_readers_do_not_wait_for_the_writer(file):
    """While a transaction is open, others read the earlier content."""
    with file.write_transaction() as writing:
        writing.execute("INSERT INTO topics (name, sealed) VALUES ('t', 0)")
        with file.read_connection() as reading:
            assert reading.execute("SELECT count(*) FROM topics").fetchone() == (0,)


def test_few_connections_are_kept(file):
    """However many threads read at once, only a limited number of connections is kept."""
    all_at_once = threading.Barrier(3 * MAX_IDLE_CONNECTIONS)

    def read(_: int) -> sqlite3.Connection:
        with file.read_connection() as connection:
            all_at_once.wait(PATIENCE)
        return connection

    with ThreadPoolExecutor(3 * MAX_IDLE_CONNECTIONS) as threads:
        connections = list(threads.map(read, range(3 * MAX_IDLE_CONNECTIONS)))
    assert sum(is_open(connection) for connection in connections) == MAX_IDLE_CONNECTIONS


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True
