"""What `nakadi doctor` reads in the metrics of a broker."""

import pytest

from nakadi_cli.doctor import check_machine
from nakadi_cli.failures import NotFound

ROOM = """\
# HELP nakadi_disk_free_bytes Room.
nakadi_disk_free_bytes{place="data"} 50000000000.0
nakadi_disk_size_bytes{place="data"} 100000000000.0
nakadi_sqlite_commit_failures_total 0.0
"""


class Broker:
    """A broker with these metrics, or with none."""

    def __init__(self, metrics=None):
        self._metrics = metrics

    def metrics(self):
        if self._metrics is None:
            raise NotFound("no")
        return self._metrics


@pytest.mark.parametrize(
    ("metrics", "state", "why"),
    [
        (ROOM, "well", "disks have room"),
        (ROOM.replace("50000000000.0", "0.0"), "ill", "the disk of data has 0 MB left"),
        (ROOM.replace("failures_total 0.0", "failures_total 3.0"), "notice", "3 commits to the event log failed since"),
        (ROOM + "nakadi_archive_unreadable_total 75.0\n", "notice", "75 reads found the archive damaged since"),
        (ROOM + 'nakadi_archive_failures_total{operation="cut"} 28.0\n', "notice", "28 attempts to archive failed"),
        (None, "well", "shows no metrics"),
    ],
    ids=["room", "full disk", "failed commits", "damaged archive", "archive fails", "no metrics"],
)
def test_the_machine_is_checked_by_its_metrics(metrics, state, why):
    """A full disk is ill; faults since the start are noticed."""
    found = check_machine(Broker(metrics))

    assert found.state == state
    assert why in found.why
