"""The stores of archive objects."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from botocore.parsers import ResponseParserError
from botocore.session import Session

from nakadi.engines.archive import stores
from nakadi.engines.archive.stores import (
    FolderStore,
    MemoryStore,
    OldVersion,
    S3Store,
    open_archive,
    open_archive_if_set,
)
from nakadi.model.log_index import ArchiveLocation
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.archive_store import ArchiveObjectGone, ArchiveStore
from tests.support.aws import REGION, aws
from tests.support.closed import assert_everything_is_refused

FAULTY = "http://127.0.0.1:9"
"""No server listens on this port."""


@pytest.fixture(params=["memory", "folder", "s3"])
def store(request, tmp_path):
    if request.param != "s3":
        yield open_archive("memory:" if request.param == "memory" else f"file://{tmp_path}/archive")
        return
    with aws():
        client = Session().create_client("s3", REGION)
        client.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
        opened = open_archive(f"s3://archive/some/folder?region={REGION}")
        yield opened
        opened.close()


def test_a_range_of_an_object_can_be_had(store):
    """A store returns any part of a stored object."""
    store.put("a/b/c.gz", b"0123456789")
    assert store.read_range(ArchiveLocation("a/b/c.gz", 0, 10)) == b"0123456789"
    assert store.read_range(ArchiveLocation("a/b/c.gz", 3, 4)) == b"3456"


def test_what_is_kept_is_listed(store):
    """Objects are listed by the prefix of their keys, with their size and their approximate age."""
    begun = datetime.now(UTC) - timedelta(seconds=5)
    for key in ("log/a/1", "log/a/2", "log/b/1", "logs", "compacted/a/1"):
        store.put(key, key.encode())
    found = list(store.list_objects("log/a/"))
    assert sorted((each.key, each.size) for each in found) == [("log/a/1", 7), ("log/a/2", 7)]
    assert all(begun <= each.written_at <= datetime.now(UTC) + timedelta(seconds=5) for each in found)
    assert sorted(each.key for each in store.list_objects("log/")) == ["log/a/1", "log/a/2", "log/b/1"]
    assert list(store.list_objects("nothing/")) == []
    store.remove(["log/a/1", "log/a/2"])
    assert list(store.list_objects("log/a/")) == []


def test_more_than_a_page_is_listed(store, monkeypatch):
    """However many objects there are, all are listed."""
    monkeypatch.setattr(stores, "KEYS_PER_PAGE", 3)
    for number in range(10):
        store.put(f"a/{number}", b"")
    assert len(list(store.list_objects("a/"))) == 10


def test_a_shorter_object_is_not_out_of_reach(store):
    """A range that begins after the end of an object is empty, so its reader notices that something is missing."""
    store.put("a", b"content")
    assert store.read_range(ArchiveLocation("a", 100, 7)) == b""
    assert store.read_range(ArchiveLocation("a", 5, 7)) == b"nt"


def test_keeping_again_changes_nothing(store):
    """The same object can be stored twice."""
    for _ in range(2):
        store.put("a", b"content")
    assert store.read_range(ArchiveLocation("a", 0, 7)) == b"content"


def test_what_is_not_there_is_reported(store):
    """A missing object differs from an empty one, and removing it changes nothing."""
    store.put("a", b"content")
    store.remove(["a", "b"])
    store.remove([])
    with pytest.raises(ArchiveObjectGone):
        store.read_range(ArchiveLocation("a", 0, 7))


def test_a_store_that_does_not_answer_is_unavailable(monkeypatch):
    """A store that does not answer raises `Unavailable`, so nobody takes it for an empty one."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    store = open_archive(f"s3://archive?region={REGION}&endpoint={FAULTY}")
    with pytest.raises(Unavailable):
        store.read_range(ArchiveLocation("a", 0, 7))
    with pytest.raises(Unavailable):
        store.put("a", b"")
    store.close()


class AnsweringS3Client:
    """An S3 client that gives this answer to every call, or raises it."""

    def __init__(self, answer):
        self._answer = answer

    def __getattr__(self, operation):
        return self._call

    def _call(self, **_):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_objects_that_s3_does_not_remove_are_not_taken_for_removed():
    """If S3 answers with 200, but names objects that it did not remove, the caller learns which objects are left."""
    refused = [{"Key": "b", "Code": "AccessDenied", "Message": "no"}, {"Key": "c", "Code": "InternalError"}]
    store = S3Store(AnsweringS3Client({"Errors": refused}), "archive")
    with pytest.raises(Unavailable, match=r"2 of 3 objects were not removed.* b: AccessDenied"):
        store.remove(["a", "b", "c"])


def test_an_answer_of_s3_that_cannot_be_read_is_no_answer():
    """An answer that is not in the format of S3, such as one from a proxy, counts as no answer."""
    store = S3Store(AnsweringS3Client(ResponseParserError("invalid XML")), "archive")
    with pytest.raises(Unavailable, match="invalid XML"):
        list(store.list_objects("log/"))


def test_a_closed_store_refuses_everything(store):
    """After closing, calls fail; closing again changes nothing."""
    store.put("a/b", b"content")
    store.close()
    store.close()
    attempts = {
        "put": lambda: store.put("a/c", b"content"),
        "read_range": lambda: store.read_range(ArchiveLocation("a/b", 0, 7)),
        "remove": lambda: store.remove(["a/b"]),
        "list_objects": lambda: list(store.list_objects("a/")),
    }
    assert_everything_is_refused(ArchiveStore, attempts)


def test_a_folder_holds_no_half_objects(tmp_path):
    """An object is whole as soon as it has its name, and no unfinished file is left beside it."""
    store = open_archive(f"file://{tmp_path}")
    store.put("a/b", b"content")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == ["a/b"]


def test_folders_go_with_what_is_in_them(tmp_path):
    """Empty folders are removed, except the archive's own."""
    store = open_archive(str(tmp_path / "archive"))
    store.put("log/a/b/1", b"content")
    store.put("log/c", b"content")
    store.remove(["log/a/b/1"])
    assert sorted(path.name for path in (tmp_path / "archive").rglob("*")) == ["c", "log"]
    store.remove(["log/c"])
    assert list((tmp_path / "archive").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path):
    """If the disk refuses a write, the archive counts as unreachable, and nothing is left behind."""
    (tmp_path / "archive").write_text("not a folder")
    with pytest.raises(Unavailable):
        open_archive(str(tmp_path / "archive")).put("a/b", b"content")
    store = open_archive(str(tmp_path))
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(Unavailable):
        store.put("a/b", b"content")
    assert [path.name for path in tmp_path.rglob("*")].count("b") == 1
    assert len(list((tmp_path / "a").iterdir())) == 1


def test_a_url_names_the_store():
    """No URL means no archive. The refusal of an unknown scheme lists the known ones."""
    assert open_archive_if_set("") is None
    assert isinstance(open_archive_if_set("memory:"), MemoryStore)
    assert isinstance(open_archive_if_set("data/archive"), FolderStore)
    with pytest.raises(BadSetting, match="memory, file, s3"):
        open_archive("ftp://here")


@pytest.fixture
def versioned_store():
    """A store in a bucket with versioning."""
    with aws():
        client = Session().create_client("s3", REGION)
        client.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
        client.put_bucket_versioning(Bucket="archive", VersioningConfiguration={"Status": "Enabled"})
        with closing(open_archive(f"s3://archive/some/folder?region={REGION}")) as opened:
            yield opened


def test_a_bucket_may_keep_what_was_replaced_and_removed(versioned_store, monkeypatch):
    """The store lists and reads old versions, whatever replaced them, and can remove them for good."""
    monkeypatch.setattr(stores, "KEYS_PER_PAGE", 1)
    for content in (b"first", b"second"):
        versioned_store.put("a/b/c.gz", content)
    versioned_store.put("a/b/d.gz", b"third")
    versioned_store.put("x/e.gz", b"fourth")
    versioned_store.remove(["a/b/d.gz", "x/e.gz"])

    found = list(versioned_store.list_old_versions("a/b/"))
    assert {each.key: versioned_store.read_old_version(each) for each in found} == {
        "a/b/c.gz": b"first",
        "a/b/d.gz": b"third",
    }

    assert versioned_store.remove_old_versions(found) == {}
    assert list(versioned_store.list_old_versions("a/b/")) == []
    with pytest.raises(ArchiveObjectGone):
        versioned_store.read_old_version(found[0])
    assert versioned_store.read_range(ArchiveLocation("a/b/c.gz", 0, 10)) == b"second"
    assert [each.key for each in versioned_store.list_old_versions("x/")] == ["x/e.gz"]


def test_a_bucket_without_versions_has_no_old_ones():
    """In a bucket without versioning, all objects are the latest versions, and removed objects no longer exist."""
    with aws():
        client = Session().create_client("s3", REGION)
        client.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
        with closing(open_archive(f"s3://archive?region={REGION}")) as store:
            store.put("a/b", b"1")
            store.put("a/b", b"2")
            store.put("a/c", b"3")
            store.remove(["a/c"])
            assert list(store.list_old_versions("a/")) == []


def test_a_version_that_is_not_removed_is_named():
    """If S3 does not remove one of several versions, the result names that version and the reason."""
    stays, goes = OldVersion("a", "1", 1), OldVersion("a", "2", 1)
    answer = {"Errors": [{"Key": "a", "VersionId": "1", "Code": "AccessDenied"}]}
    store = S3Store(AnsweringS3Client(answer), "archive")
    assert store.remove_old_versions([stays, goes]) == {stays: "AccessDenied"}
