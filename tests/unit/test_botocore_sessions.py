"""Clients of several services, made by one process."""

from unittest.mock import patch

from botocore.loaders import JSONFileLoader

from nakadi.archive.stores import open_archive
from nakadi.botocore_sessions import new_session
from nakadi.model.log_index import Location
from tests.support.aws import REGION, aws


def test_sessions_share_what_is_long_to_read():
    """A second client of a service reads no description again, and yet is made by a session of its own."""
    first, second = new_session(), new_session()
    assert first is not second
    first.create_client("dynamodb", REGION)
    with patch.object(JSONFileLoader, "load_file", side_effect=AssertionError):
        second.create_client("dynamodb", REGION)


def test_the_archives_client_is_made_when_it_is_asked_for(monkeypatch):
    """Whoever opens an archive and never looks into it makes no client; closing it makes none either."""
    made = []

    def counted():
        made.append(1)
        return new_session()

    monkeypatch.setattr("nakadi.botocore_sessions.new_session", counted)
    with aws():
        archive = open_archive(f"s3://archive/?region={REGION}")
        archive.close()
        assert made == []
        archive = open_archive(f"s3://archive/?region={REGION}")
        s3 = new_session().create_client("s3", REGION)
        s3.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
        archive.put("a", b"content")
        assert archive.get(Location("a", 0, 7)) == b"content"
        assert made == [1]
        archive.close()
