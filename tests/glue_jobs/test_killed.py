"""A job that is killed leaves nothing that its next run does not put right; `make kill-jobs` does this at length, at
random moments."""

import pytest

from tests.support import kill_jobs

# Rows are written and not committed: to a table, and to its second one while the first has them already.
MOMENTS = (
    ("follow", "nakadi/customer_changed/data/**/*.parquet"),
    ("compaction", "nakadi/customer_changed__latest/data/**/*.parquet"),
)


@pytest.mark.long
def test_jobs_are_killed(tmp_path):
    """Tables have every event once, and the newest of each key, wherever the jobs that fill them were killed."""
    kill_jobs.kill_compaction_at(kill_jobs.KilledJobs(tmp_path / "data", seed=1), MOMENTS)
