"""Files of attempts at Spark's tasks that do not count."""

import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from nakadi_jobs.tables import Table
from tests.support.jobs import order

WRITE = re.compile(r"-(\d+)-([0-9a-f-]{36})-")


@pytest.fixture
def table(jobs, data):
    """A table with one row, which Spark itself wrote: its number is not one that Arrow reads exactly."""
    data.archive_events(data.event_type("order.placed"), [order(1, total=1e30)])
    assert jobs.compact().code == 0
    # Spark opens the catalog of a session when the session first reads. `Table` alone would open the one of the session
    # that was active last, which may have its tables elsewhere.
    assert jobs.rows("order_placed") == [(0, 0)]
    return Table(jobs.spark(), jobs.database, "order_placed")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_files_of_other_attempts_at_a_write_are_removed(table, monkeypatch, elsewhere):
    """If tasks run in other processes, a file of another attempt at the same write is removed before the rows are
    visible. The files of other writes stay, for another run may be about to add them.
    """
    monkeypatch.setattr("nakadi_jobs.tables.has_tasks_in_driver", lambda _: not elsewhere)
    with table.change() as change:
        change.append(table.rows(), None)
        (added,) = list_files(table, "all_data_files") - list_files(table, "files")
        of_attempt = copy_with_name(added, WRITE.sub(r"-9\1-\2-", added.name))
        of_other_write = copy_with_name(added, WRITE.sub(r"-9\1-00000000-0000-4000-8000-000000000000-", added.name))
        change.publish()

    assert (of_attempt.exists(), of_other_write.exists()) == (not elsewhere, True)
    assert table.rows().count() == 2


def copy_with_name(file, name):
    assert name != file.name
    return Path(shutil.copy(file, file.with_name(name)))


def list_files(table, kind):
    rows = table.spark.table(f"{table.path}.{kind}").select("file_path").collect()
    return {Path(urlsplit(row["file_path"]).path) for row in rows}
