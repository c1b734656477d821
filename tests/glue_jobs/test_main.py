"""One command runs all jobs."""

import pytest

from nakadi_jobs.__main__ import run_all


@pytest.mark.parametrize(
    ("codes", "expected", "started"),
    [
        ((0, 0, 0), 0, 3),
        ((3, 0, 0), 3, 3),
        ((0, 3, 0), 3, 3),
        ((1, 0, 0), 1, 1),
        ((3, 2, 0), 2, 2),
    ],
)
def test_a_job_with_complaints_stops_no_other(codes, expected, started):
    """If a job has complaints, all other jobs still run, and the exit code says so; a failure ends the round."""
    given = []

    def job(code):
        return lambda arguments: given.append(arguments) or code

    assert run_all([(job(code), ["--hours", str(code)]) for code in codes]) == expected
    assert given == [["--hours", str(code)] for code in codes[:started]]
