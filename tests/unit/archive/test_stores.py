"""Where archive objects are kept."""

import pytest
from botocore.session import Session

from nakadi.archive.stores import MemoryStore, UnknownStore, archive_at, open_archive
from nakadi.model.log_index import Location
from nakadi.model.outcomes import Unavailable
from nakadi.ports import ArchiveGone
from tests.support.aws import REGION, aws

FAULTY = "http://127.0.0.1:9"
"""Nobody listens on the port for discarding."""


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
    """What was kept comes back, in any part."""
    store.put("a/b/c.gz", b"0123456789")
    assert store.get(Location("a/b/c.gz", 0, 10)) == b"0123456789"
    assert store.get(Location("a/b/c.gz", 3, 4)) == b"3456"


def test_keeping_again_changes_nothing(store):
    """The same object can be kept twice."""
    for _ in range(2):
        store.put("a", b"content")
    assert store.get(Location("a", 0, 7)) == b"content"


def test_what_is_not_there_is_told(store):
    """A missing object is not an empty one, and removing it changes nothing."""
    store.put("a", b"content")
    store.remove(["a", "b"])
    store.remove([])
    with pytest.raises(ArchiveGone):
        store.get(Location("a", 0, 7))


def test_a_store_that_does_not_answer_is_unavailable(monkeypatch):
    """Nobody takes a broken store for one without objects."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    store = open_archive(f"s3://archive?region={REGION}&endpoint={FAULTY}")
    with pytest.raises(Unavailable):
        store.get(Location("a", 0, 7))
    with pytest.raises(Unavailable):
        store.put("a", b"")
    store.close()


def test_a_folder_holds_no_half_objects(tmp_path):
    """Under its name an object is whole, and nothing unfinished is left beside it."""
    store = open_archive(f"file://{tmp_path}")
    store.put("a/b", b"content")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == ["a/b"]


def test_a_url_names_the_store():
    """No URL is no archive, and an unknown one is refused with those that are known."""
    assert archive_at("") is None
    assert isinstance(archive_at("memory:"), MemoryStore)
    with pytest.raises(UnknownStore, match="memory, file, s3"):
        open_archive("ftp://here")
