"""Metrics of the free space on disks."""

import shutil

from nakadi.app.disks import add_disk_metrics
from nakadi.app.settings import Settings
from nakadi.common.metrics import Metrics
from tests.support.metrics import collect_samples, sample_value


def read_sample(name, place, **settings):
    metrics = Metrics()
    add_disk_metrics(Settings(**settings), metrics)
    return sample_value(collect_samples(metrics), name, place=place)


def test_the_disks_of_data_file_and_archive_are_measured(tmp_path, monkeypatch):
    """The figures describe the file systems with the data file and with the archive, whether the archive is given as a
    folder or as a URL."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=len(str(path)), total=7000))
    (tmp_path / "cold").mkdir()
    (tmp_path / "cold/.nakadi-archive").touch()
    data = {"registry": f"sqlite:///{tmp_path}/nakadi.db", "event_log": f"sqlite:///{tmp_path}/nakadi.db"}

    assert read_sample("nakadi_disk_free_bytes", "data", **data) == len(str(tmp_path))
    assert read_sample("nakadi_disk_size_bytes", "data", **data) == 7000
    for archive in (f"{tmp_path}/cold", f"file://{tmp_path}/cold"):
        assert read_sample("nakadi_disk_free_bytes", "archive", **data, archive=archive) == len(f"{tmp_path}/cold")


def test_an_archive_that_is_not_mounted_has_no_figures(tmp_path):
    """A folder without the archive's marker has no figures: it may be an empty mount point, and the disk under it says
    nothing about the archive. (L80)
    """
    assert read_sample("nakadi_disk_free_bytes", "archive", archive=str(tmp_path)) == 0


def test_what_is_on_no_disk_has_no_figures(tmp_path):
    """A broker in memory, an archive in S3, and a folder that does not exist yet have no figures."""
    assert read_sample("nakadi_disk_free_bytes", "data") == 0
    assert read_sample("nakadi_disk_free_bytes", "archive", archive="s3://bucket/prefix") == 0
    assert read_sample("nakadi_disk_free_bytes", "archive", archive=f"{tmp_path}/missing") == 0
