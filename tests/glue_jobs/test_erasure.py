import json

import pytest

from nakadi.engines.archive import member_format
from nakadi.engines.archive.stores import FolderStore
from nakadi.model.events import Record, StoredEvent
from nakadi.model.log_index import ArchiveLocation
from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.command import BadArguments
from nakadi_jobs.erasure import ErasedValue, ErasureMode, erase_events, search_archive
from nakadi_jobs.leftovers import Unreadable, relative_folder, search_bounds
from nakadi_jobs.retention import read_value
from tests.support.builders import A_MOMENT


def make_events(*values, key=None):
    return [
        StoredEvent(offset, Record(None if value is None else json.dumps(value).encode(), key), A_MOMENT)
        for offset, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("event", "path", "value"),
    [
        ({"customer": {"id": "c-1"}}, "customer.id", "c-1"),
        ({"customers": [{"id": "c-2"}, {"id": "c-1"}]}, "customers.id", "c-1"),
        ({"ids": [["c-1"]]}, "ids", "c-1"),
        ({"id": 4711}, "id", "4711"),
        ({"id": 4711.0}, "id", "4711"),
        ({"id": 1e3}, "id", "1000"),
        ({"id": "4711"}, "id", "4711"),
        ({"deleted": True}, "deleted", "true"),
        ({"at": "2026-11-20T10:00:00.000000Z"}, "at", "2026-11-20T11:00:00+01:00"),
        ({"name": "Zoë \u2028"}, "name", "Zoë \u2028"),
        ({"free": '{"id":"c-1"}'}, "free.id", "c-1"),
    ],
)
def test_a_value_is_found(event, path, value):
    """An erasure finds a value within objects and lists, however the value is written."""
    assert ErasedValue(tuple(path.split(".")), value).occurs_in(event)


@pytest.mark.parametrize(
    ("event", "path", "value"),
    [
        ({"customer": {"id": "c-10"}}, "customer.id", "c-1"),
        ({"customer": "c-1"}, "customer.id", "c-1"),
        ({"other": {"id": "c-1"}}, "customer.id", "c-1"),
        ({"customer": {"id": {"x": "c-1"}}}, "customer.id", "c-1"),
        ({"id": True}, "id", "1"),
        ({"at": "2026-11-20T10:00:00Z"}, "at", "2026-11-20T10:00:00.1Z"),
        ({"at": "today"}, "at", "tomorrow"),
        ({"id": None}, "id", "c-1"),
    ],
)
def test_another_value_is_not_meant(event, path, value):
    """A value that only looks the same, or is at another path, stays."""
    assert not ErasedValue(tuple(path.split(".")), value).occurs_in(event)


def test_removing_keeps_offsets():
    """Removed events leave gaps; the other events keep their offsets."""
    kept, meant = erase_events(
        make_events({"id": "a"}, {"id": "b"}, {"id": "c"}), ErasedValue(("id",), "b"), ErasureMode.REMOVE
    )
    assert [each.offset for each in kept] == [0, 2]
    assert meant == [1]


def test_blanking_keeps_the_event():
    """A blanked event keeps its metadata, but has neither content nor key."""
    event = {"metadata": {"eid": "e", "partition_compaction_key": "b"}, "id": "b", "name": "Jane"}

    kept, meant = erase_events(make_events(event, key="b"), ErasedValue(("id",), "b"), ErasureMode.BLANK)

    assert meant == [0]
    assert json.loads(kept[0].record.value) == {"metadata": {"eid": "e"}}
    assert kept[0].record.key is None


def test_blanking_a_data_event():
    """A blanked data event keeps its form."""
    event = {"metadata": {"eid": "e"}, "data_type": "t", "data_op": "U", "data": {"id": "b"}}
    kept, _ = erase_events(make_events(event), ErasedValue(("data", "id"), "b"), ErasureMode.BLANK)
    assert json.loads(kept[0].record.value) == {"metadata": {"eid": "e"}, "data_type": "t", "data_op": "U", "data": {}}


@pytest.mark.parametrize("how", ErasureMode)
def test_a_tombstone_is_known_by_its_key(how):
    """A tombstone whose key is the value is removed, since it contains nothing else."""
    kept, meant = erase_events(make_events(None, key="c-1"), ErasedValue(("id",), "c-1"), how)
    assert (kept, meant) == ([], [0])


def test_a_value_is_found_in_what_cannot_be_parsed():
    """Tables keep broken events as text; erasure also finds values there."""
    wanted = ErasedValue(("customer", "id"), "c-1")
    assert wanted.occurs_in_text(b'{broken "c-1"')
    assert not wanted.occurs_in_text(b'{broken "c-2"')


def test_parts_of_an_archive_are_searched(tmp_path):
    """An erasure finds the parts of the archive that contain the value, whatever the notation of a number, and names
    parts that it cannot read.
    """
    store = FolderStore(tmp_path)
    contents = {
        "a": member_format.pack_member("t", 0, make_events({"id": "b"}, {"id": 4711.0})),
        "b": member_format.pack_member("t", 0, make_events({"other": "4711"}, {"id": 4712})),
        "c": b"broken",
    }
    parts = []
    for key, content in contents.items():
        store.put(key, content)
        place = {"topic": "t", "timeline": 1, "partition": 0, "first": 0, "end": 2, "since": 0, "until": 0}
        parts.append(ArchiveRange(**place, location=ArchiveLocation(key, 0, len(content)), events=2))

    numbers = dict(search_archive(f"file://{tmp_path}", ErasedValue(("id",), "4711"), parts))
    assert (sorted(numbers), numbers["a@0"]) == (["a@0", "c@0"], "")
    assert numbers["c@0"].startswith("c cannot be read")
    assert "a@0" in dict(search_archive(f"file://{tmp_path}", ErasedValue(("id",), "b"), parts))


def test_the_value_can_be_in_a_file(tmp_path):
    """If a file is given for the value, its first line is the value; a missing file is refused."""
    (tmp_path / "value").write_text("Zoë 4711\nand more\n")
    assert read_value(str(tmp_path / "value")) == "Zoë 4711"
    with pytest.raises(BadArguments):
        read_value(str(tmp_path / "other"))


class TableWithBounds:
    """A table with these bounds in its manifests."""

    def __init__(self, *bounds):
        self.bounds = lambda: frozenset(bounds)


@pytest.mark.parametrize(
    ("bound", "found"),
    [(b"customer-4711-of", True), (b"customer-4711-og", True), (b"customer-4712-of", False), (b"customer", False)],
)
def test_bounds_that_are_the_beginning_of_a_value(bound, found):
    """Manifests have the first sixteen characters of a text; in an upper bound, the last character is incremented."""
    assert search_bounds(TableWithBounds(bound), ErasedValue(("id",), "customer-4711-of-the-long-name")) == found


def test_folders_of_tables():
    """An erasure finds a table's folder below the folder of all tables; it cannot search one that is elsewhere."""
    assert relative_folder("file:///data/tables", "file:/data/tables/nakadi/orders") == "nakadi/orders"
    assert relative_folder("s3://bucket/tables", "s3://bucket/tables/nakadi.db/orders") == "nakadi.db/orders"
    with pytest.raises(Unreadable):
        relative_folder("s3://bucket/tables", "s3://other/tables/nakadi.db/orders")
