import pytest

from nakadi.engines.archive import objects
from nakadi.model.events import Record, StoredEvent
from nakadi_jobs.reading import place_of, problem_with
from tests.support.builders import A_MOMENT

WHOLE = objects.member("t", 0, [StoredEvent(0, Record(b'{"a":"' + b"x" * 5_000_000 + b'"}'), A_MOMENT)])


def test_a_whole_member_has_no_problem():
    """A member that is as long as it should be, and whose checksum holds, is fine."""
    assert problem_with(WHOLE, len(WHOLE)) == ""
    assert problem_with(WHOLE + WHOLE, 2 * len(WHOLE)) == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (WHOLE[:-9], "cut off"),
        (WHOLE[:-6] + b"\x00\x00" + WHOLE[-4:], "damaged"),
        (b"no gzip" + WHOLE[7:], "damaged"),
        (WHOLE[:20] + bytes(len(WHOLE) - 20), "damaged"),
    ],
)
def test_what_is_wrong_is_reported(content, problem):
    """A member that is cut off, changed, or no gzip at all is not taken for events."""
    assert problem in problem_with(content, len(WHOLE))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("file:///data/archive", "file:///data/archive"),
        ("s3://bucket/?region=eu-central-1", "s3://bucket"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("memory:", None),
    ],
)
def test_where_spark_finds_the_archive(url, place):
    """An archive's URL as Spark writes it; what only this process has cannot be read from elsewhere."""
    assert place_of(url) == place
