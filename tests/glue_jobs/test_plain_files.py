"""How the work on a batch is split, how much of it is in memory at once, and which files remain."""

import gzip
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from nakadi.engines.archive.stores import MemoryStore
from nakadi.model.log_index import ArchiveLocation
from nakadi_jobs import in_tasks, plain_files
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.gathering import MAX_SPAN_BYTES, group_into_spans
from nakadi_jobs.plain_files import CreatedFiles, StoreUrls, Target, make_files, remove_files, split_into_shares
from nakadi_jobs.session import has_tasks_in_driver, is_on_this_machine

MB = 1 << 20
GB = 1 << 30
DAY = timedelta(days=1)
AT = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)


def a_range(number, length, until=AT):
    moments = [round(moment.timestamp() * 1_000_000) for moment in (AT, until)]
    return ArchiveRange(
        topic="t",
        timeline=1,
        partition=0,
        first=number,
        end=number + 1,
        location=ArchiveLocation(f"object-{number}", 0, length),
        since=moments[0],
        until=moments[1],
        events=1,
    )


@pytest.mark.parametrize(
    ("master", "in_driver", "on_this_machine"),
    [
        ("local", True, True),
        ("local[*]", True, True),
        ("local[2,4]", True, True),
        ("local-cluster[2,1,1024]", False, True),
        ("spark://127.0.0.1:7077", False, True),
        ("spark://localhost:7077", False, True),
        ("spark://cluster.example:7077", False, False),
        ("yarn", False, False),
        ("", False, False),
    ],
)
def test_masters_say_where_tasks_run(master, in_driver, on_this_machine):
    """A cluster of processes on this machine counts as a cluster; only executors on other machines need a reachable
    address of the driver.
    """
    assert (has_tasks_in_driver(master), is_on_this_machine(master)) == (in_driver, on_this_machine)


@pytest.mark.parametrize(
    ("size", "workers", "shares"),
    [
        (2 * GB, 4, 32),  # there is one executor now, but Spark can add others
        (2 * GB, 36, 36),
        (2 * GB, 1, 32),
        (100 * MB, 4, 4),
        (20 * MB, 4, 2),
        (MB, 4, 1),
    ],
)
def test_shares_follow_the_work(size, workers, shares):
    """However few workers there are when a batch begins, no share exceeds the maximum, and no file is tiny."""
    parts = [a_range(number, MB) for number in range(size // MB)]
    found = list(split_into_shares(parts, workers, plain_files.MAX_SHARE_BYTES))
    assert abs(len(found) - shares) <= 1
    assert sorted(part.first for share in found for part in share) == [part.first for part in parts]


@pytest.mark.parametrize(
    ("parts", "size", "workers", "tasks"),
    [(100_000, GB, 4, 500), (2_000, 2 * GB, 4, 64), (100, MB, 4, 4), (3, MB, 4, 3), (2, GB, 4, 2)],
)
def test_tasks_follow_the_work(parts, size, workers, tasks):
    """More work results in more tasks: both those that search the archive, and those that copy it for Spark."""
    assert in_tasks.count_tasks(parts, size, workers) == tasks


def test_a_request_reads_so_much_at_most():
    """Whatever an object contains, a request reads at most the limit; larger members are read one by one."""
    sizes = [MB] * 30 + [20 * MB] + [MB]
    members, start = [], 0
    for size in sizes:
        members.append((ArchiveLocation("o", start, size), size))
        start += size
    spans = list(group_into_spans(members))
    assert [size for span in spans for _, size in span] == sizes
    assert sorted({sum(size for _, size in span) for span in spans}) == [MB, 6 * MB, MAX_SPAN_BYTES, 20 * MB]


def test_chunks_are_of_whole_lines_and_bounded(monkeypatch):
    """A member that is larger than a chunk is in several chunks, each with its wanted parts."""
    monkeypatch.setattr(plain_files, "CHUNK_BYTES", 1000)
    store = MemoryStore()
    lines = [b'{"n":%d}\n' % number for number in range(2000)]
    sizes = [1500, 10, 490]
    parts = []
    for number, size in enumerate(sizes):
        first = sum(sizes[:number])
        content = gzip.compress(b"".join(lines[first : first + size]))
        parts.append(a_range(number, len(content)))
        store.put(f"object-{number}", content)

    chunks = list(plain_files.read_chunks(store, parts))

    assert b"".join(chunk.text for chunk in chunks) == b"".join(lines)
    assert all(chunk.text.endswith(b"\n") and len(chunk.text) < 3000 for chunk in chunks)
    for number, part in enumerate(parts):
        first = sum(sizes[:number])
        texts = b"".join(chunk.text for chunk in chunks if part in chunk.parts)
        assert all(line in texts for line in lines[first : first + sizes[number]])


def test_rows_that_wait_are_bounded(monkeypatch):
    """Rows with few values count fully: in memory, each row has room for every column."""
    monkeypatch.setattr(plain_files, "FILE_BYTES", 1_000_000)
    files = plain_files._DayFiles(MemoryStore(), TARGET)
    rows = pa.table({f"c{number}": pa.nulls(1000, pa.float64()) for number in range(50)})
    for number in range(10):
        files.add((0, 1, 0, number), rows)
        assert sum(files._bytes.values()) < 1_000_000
    files.finish()
    assert len(files.made) == 4


TARGET = Target(form=None, folder="n/orders/data", partition="day", gathered="_gathered/t/b", batch="b1")


def test_files_of_lost_attempts_are_removed():
    """For each day on which a batch has events, its files that are not among the files to keep are removed, and no
    others.
    """
    tables = MemoryStore()
    lost = ["day=2026-11-20/b1-1.parquet", "day=2026-11-21/b1-2.parquet", "day=2026-11-21/3.unfinished"]
    others = ["day=2026-11-20/b2-1.parquet", "day=2026-11-21/b1-4.parquet", "day=2026-11-20/00000-b1.parquet"]
    for name in (*lost, *others):
        tables.put(f"n/orders/data/{name}", b"")

    remove_files(tables, TARGET, [a_range(0, 1, until=AT + DAY)], {"n/orders/data/day=2026-11-21/b1-4.parquet"})

    assert tables.all_keys() == sorted(f"n/orders/data/{name}" for name in others)


def test_a_batch_that_fails_leaves_no_files(monkeypatch):
    """No files remain if one share has written its file when another one finds damage."""
    tables = MemoryStore()

    def share(_archive, tables, target, parts):
        if parts[0].first:
            raise OSError("damaged")
        tables.put(f"{target.day_folder('2026-11-20')}{target.batch}-1.parquet", b"")
        return CreatedFiles([], [])

    monkeypatch.setattr(plain_files, "_make_share", share)
    monkeypatch.setattr(plain_files, "SHARE_BYTES", 1)
    monkeypatch.setattr(plain_files.os, "cpu_count", lambda: 2)
    with pytest.raises(OSError, match="damaged"):
        make_files(LocalSpark(), MemoryStore(), tables, StoreUrls("", ""), TARGET, [a_range(0, 1), a_range(1, 1)])
    assert tables.all_keys() == []


class LocalSpark:
    """Stands for a Spark whose tasks run in the driver."""

    master = "local[2]"

    @property
    def sparkContext(self):  # noqa: N802  # Spark's name
        return self
