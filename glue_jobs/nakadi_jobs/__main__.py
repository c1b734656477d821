"""`python -m nakadi_jobs [JOB] [ARGUMENTS]`: runs one job, or the three jobs that end, one after the other in one
Spark.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

from nakadi_jobs.reports import DONE, NEEDS_ATTENTION

JOBS = ("compaction", "statistics", "retention")
FOLLOW = "follow"
"""The job that never ends by itself. `all` does not include it."""
ACKNOWLEDGE = "acknowledge"
"""The command by which operators end warnings about known events. No schedule runs it."""

Main = Callable[[Sequence[str]], int]


def main(arguments: Sequence[str]) -> int:
    """Run the job that the first argument names, or all that end. The exit code is the worst one of these jobs."""
    if arguments and arguments[0] in (*JOBS, FOLLOW, ACKNOWLEDGE):
        return _find_main(arguments[0])(arguments[1:])
    known, for_all = _parser().parse_known_args(arguments)
    plots = ["--plots", known.plots] if known.plots else []
    return run_all([(_find_main(job), [*for_all, *(plots if job == "statistics" else [])]) for job in JOBS])


def run_all(jobs: Iterable[tuple[Main, Sequence[str]]]) -> int:
    """Run jobs one after the other. If one reports complaints, the next ones still run; if one fails, they do not."""
    worst = DONE
    for run, arguments in jobs:
        code = run(arguments)
        if code not in (DONE, NEEDS_ATTENTION):
            return code
        worst = max(worst, code)
    return worst


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m nakadi_jobs",
        description="Run the jobs on the archive: all, one after the other, or the one that the first word names.",
        epilog=f"Jobs: {', '.join(JOBS)}, and {FOLLOW}, which keeps tables up to date until it is interrupted. "
        "Each explains its arguments with --help. All take --data and --tables. "
        f"After them, {ACKNOWLEDGE} ends warnings about known events.",
        allow_abbrev=False,
    )
    made.add_argument("--plots", help="folder or s3:// prefix to which statistics draws its plots")
    return made


def _find_main(job: str) -> Main:
    found: Main = import_module(f"nakadi_jobs.{job}").main
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
