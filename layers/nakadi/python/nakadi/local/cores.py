"""The default number of processes that answer requests: the number of cores, if there can be several processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from nakadi.app.settings import Settings
from nakadi.local.supervisor import check_workers
from nakadi.model.outcomes import BadSetting

MAX_DEFAULT_WORKERS = 8
"""With more workers, the process that commits for all would limit the others (docs/performance.md)."""

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def default_workers(settings: Settings, cores: int) -> int:
    """One process for each core, or only one if these settings allow no more, for example in memory."""
    workers = min(cores, MAX_DEFAULT_WORKERS)
    try:
        check_workers(replace(settings, workers=workers))
    except BadSetting:
        return 1
    return workers


def usable_cores() -> int:
    """The cores that this process may use: a container may have fewer than the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError):
        return min(cores, cores_within_limit(CGROUP_LIMIT.read_text()) or cores)
    return cores


def cores_within_limit(limit: str) -> int | None:
    """The whole cores in a limit as Linux writes it, for example `150000 100000`; None if there is no limit."""
    quota, period = limit.split()
    return None if quota == "max" else max(1, int(quota) // int(period))
