"""The free space on the disks of a broker."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from nakadi.app.engines import data_file_paths
from nakadi.app.settings import Settings
from nakadi.common.counting import MetricRows
from nakadi.common.metrics import Metrics
from nakadi.engines.archive.stores import FolderStore, folder_of_archive


def add_disk_metrics(settings: Settings, metrics: Metrics) -> None:
    """Make the metrics include the free space and the size of the disks with the data file and with the archive,
    measured whenever metrics are read.
    """
    metrics.disk_free.add_source(partial(_read_disks, settings, attrgetter("free")))
    metrics.disk_size.add_source(partial(_read_disks, settings, attrgetter("total")))


def _read_disks(settings: Settings, figure: Callable[[Any], int]) -> MetricRows:
    rows: dict[tuple[str, ...], float] = {}
    for place, folder in _watched_folders(settings).items():
        # A folder has no figures if it does not exist, such as an archive before its first event, or if it cannot be
        # read. A folder without the archive's marker may be a mount point without its file system.
        if place == "archive" and not FolderStore(Path(folder)).is_marked():
            continue
        try:
            rows[(place,)] = figure(shutil.disk_usage(folder))
        except OSError:
            continue
    return rows


def _watched_folders(settings: Settings) -> Mapping[str, str]:
    places: dict[str, str] = {}
    for path in data_file_paths(settings.store_urls):
        places["data"] = str(path.parent)
    if (folder := folder_of_archive(settings.archive)) is not None:
        places["archive"] = str(folder)
    return places
