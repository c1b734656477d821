"""A job that is killed leaves nothing that its next run does not put right; `make kill-jobs` does this at length."""

from tests.support import kill_jobs


def test_compaction_is_killed(tmp_path):
    """Tables have every event once, and the newest of each key, however often compaction was killed."""
    kill_jobs.compaction(kill_jobs.Killed(tmp_path / "data", seed=1), 2)
