"""The next run repairs everything that a killed job leaves behind; `make kill-jobs` tests this at length, at random
moments.
"""

import pytest

from tests.support import kill_jobs

# Rows are written but not committed: to a table, and to its second table while the first one already has them.
MOMENTS = (
    ("follow", "nakadi/customer_changed/data/**/*.parquet"),
    ("compaction", "nakadi/customer_changed__latest/data/**/*.parquet"),
)


@pytest.mark.long
def test_jobs_are_killed(tmp_path):
    """Tables have every event once, and the newest of each key, wherever the jobs that fill them were killed."""
    kill_jobs.kill_compaction_at(kill_jobs.KilledJobs(tmp_path / "data", seed=1), MOMENTS)
