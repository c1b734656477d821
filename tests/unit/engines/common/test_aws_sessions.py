"""Clients of several services in one process."""

from unittest.mock import patch

from botocore.loaders import create_loader

from nakadi.engines.archive.stores import open_archive
from nakadi.engines.common.aws_sessions import _OrjsonLoader, new_session
from nakadi.model.log_index import ArchiveLocation
from tests.support.aws import REGION, aws


def test_sessions_share_what_is_long_to_read():
    """A second client of a service does not read the service's description again, although it has a separate
    session."""
    first, second = new_session(), new_session()
    assert first is not second
    first.create_client("dynamodb", REGION)
    with patch.object(_OrjsonLoader, "load_file", side_effect=AssertionError):
        second.create_client("dynamodb", REGION)


def test_a_handler_of_one_session_is_not_anothers():
    """Handlers that are registered with a session stay there; botocore's own handlers are in all sessions."""
    first, second = new_session(), new_session()
    heard = []
    first.register("seen.dynamodb", lambda **_: heard.append(1))
    second.emit("seen.dynamodb.GetItem")
    assert heard == []
    first.emit("seen.dynamodb.GetItem")
    assert heard == [1]
    buckets = [
        session.emit("creating-client-class.s3", class_attributes={}, base_classes=[]) for session in (first, second)
    ]
    assert len(buckets[0]) == len(buckets[1]) > 0


def test_descriptions_are_what_botocore_reads():
    """Each description of a service is read as botocore itself reads it."""
    loader = new_session().get_component("data_loader")
    for service, kind in (("dynamodb", "service-2"), ("kinesis", "paginators-1"), ("s3", "endpoint-rule-set-1")):
        plain = create_loader().load_service_model(service, kind)
        assert loader.load_service_model(service, kind) == plain
    assert loader.file_loader.load_file("no-such-file") is None


def test_the_archives_client_is_made_when_it_is_asked_for(monkeypatch):
    """An archive that is opened and never read creates no client; closing it creates none either."""
    made = []

    def count_sessions():
        made.append(1)
        return new_session()

    monkeypatch.setattr("nakadi.engines.common.aws_sessions.new_session", count_sessions)
    with aws():
        archive = open_archive(f"s3://archive/?region={REGION}")
        archive.close()
        assert made == []
        archive = open_archive(f"s3://archive/?region={REGION}")
        s3 = new_session().create_client("s3", REGION)
        s3.create_bucket(Bucket="archive", CreateBucketConfiguration={"LocationConstraint": REGION})
        archive.put("a", b"content")
        assert archive.read_range(ArchiveLocation("a", 0, 7)) == b"content"
        assert made == [1]
        archive.close()
