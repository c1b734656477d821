"""Wipes data files after an erasure, so that no byte of them holds deleted text."""

from __future__ import annotations

from pathlib import Path

from nakadi.app.engines import data_file_paths
from nakadi.engines.sqlite.wiping import LOG_PATIENCE_SECONDS, DataFileWiper, request_wipe
from nakadi.model.outcomes import Unavailable
from nakadi_jobs.command import JobContext, log_index_url, registry_url


def wipe_data_files(work: JobContext, event_log_url: str) -> None:
    """Wipe the job's data files. If that is impossible now, the broker wipes them later; the report says so."""
    urls = (event_log_url, registry_url(work.options), log_index_url(work.options))
    paths = data_file_paths(urls)
    is_done_by_path = {path.name: _is_wiped(path) for path in paths}
    work.report.details["data_files_wiped"] = is_done_by_path
    for name, is_done in is_done_by_path.items():
        work.report.info(
            name,
            "wiped: free pages are zeros, and SQLite's log is empty"
            if is_done
            else "is being read or written: the broker wipes it when no reader is left; without one, run this again",
        )


def _is_wiped(path: Path) -> bool:
    request_wipe(path)
    try:
        return DataFileWiper(path).run(LOG_PATIENCE_SECONDS)
    except Unavailable:
        # The request to wipe stays in the file.
        return False
