"""A short run of the lasting load; `make lasting MINUTES=60` is a long one."""

from __future__ import annotations

import pytest

from tests.soak.lasting import DESCRIPTORS, THREADS, Plan, limit_on, run_load

# Half a minute is too short for memory and files to settle; what nobody closes grows from the first second.
LIMITS = (
    limit_on(DESCRIPTORS, share=0.4, amount=0, settles_after=10),
    limit_on(THREADS, share=0.4, amount=0, settles_after=10),
    limit_on("temporary files", share=0, amount=5, settles_after=10),
)


@pytest.mark.long(
    "tests/soak/test_growth.py::test_a_slow_leak_is_found",
    "tests/soak/test_soak.py::test_nothing_is_lost_whichever_process_is_killed",
)
def test_nothing_grows_under_everything_that_clients_do(tmp_path):
    """Each activity of the load succeeds, and no descriptor, thread or temporary file is left behind."""
    said: list[str] = []
    plan = Plan(seconds=40, events_a_second=50, restart_seconds=30, sample_seconds=1, limits=LIMITS)
    run = run_load(plan, tmp_path, said.append)
    assert run.is_good, f"{run}; {said}"
    assert [each.series for each in run.growths] == [each.series for each in LIMITS]
    assert {each.life for each in run.samples} == {0, 1}
    assert run.samples[-1].events
