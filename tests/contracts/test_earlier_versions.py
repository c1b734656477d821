"""Data folders of earlier versions, each written by the last commit with its format, work with today's broker."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import httpx
import pytest

from nakadi.engines.sqlite.file import FILE_VERSION
from tests.support.consumer import Consumer
from tests.support.earlier_versions import COMMIT_BY_FORMAT, package_at
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE
from tests.support.served import ServedBroker
from tests.support.subscriptions import publish

NAME = "kept.thing"

# The program uses only the HTTP API, and the class that has started a broker since the first version.
OLD_PROGRAM = """
import json, sys
import httpx
from nakadi.local import Broker

url = "sqlite:///" + sys.argv[1]
with Broker(registry=url, event_log=url, coordination=url) as broker, httpx.Client(base_url=broker.url) as api:
    schema = {"type": "json_schema", "schema": "{}"}
    definition = {"name": "kept.thing", "owning_application": "me", "category": "undefined", "schema": schema}
    api.post("/event-types", json=definition).raise_for_status()
    api.post("/event-types/kept.thing/events", json=[{"n": n} for n in range(10)]).raise_for_status()
    request = {"owning_application": "me", "event_types": ["kept.thing"], "read_from": "begin"}
    subscription = api.post("/subscriptions", json=request).json()["id"]
    path = f"/subscriptions/{subscription}"
    with api.stream("GET", f"{path}/events", params={"batch_limit": 4, "stream_limit": 4}) as stream:
        lines = map(json.loads, stream.iter_lines())
        batch = next(line for line in lines if "events" in line)
        headers = {"X-Nakadi-StreamId": stream.headers["x-nakadi-streamid"]}
        items = {"items": [batch["cursor"]]}
        api.post(f"{path}/cursors", json=items, headers=headers).raise_for_status()
        list(lines)
    print(subscription)
"""


def file_version(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def run_old(commit, folder, data_file):
    """Run the program with the package of an earlier commit."""
    environment = plain_environment(PYTHONPATH=str(package_at(commit, folder)))
    return subprocess.run(
        [sys.executable, "-c", OLD_PROGRAM, str(data_file)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.long("tests/unit/engines/sqlite/test_file.py::test_a_file_from_an_older_version_is_brought_up_to_date")
@pytest.mark.parametrize("version", COMMIT_BY_FORMAT)
def test_a_data_file_of_an_earlier_version_goes_on(version, tmp_path):
    """Today's broker reads the events and the cursors of an earlier one, and stores more; the earlier one then refuses
    the file with a message, and does not change it."""
    path = tmp_path / "nakadi.db"
    done = run_old(COMMIT_BY_FORMAT[version], tmp_path / "old", path)
    assert done.returncode == 0, done.stderr
    assert file_version(path) == version

    url = f"sqlite:///{path}"
    with (
        ServedBroker(registry=url, event_log=url, coordination=url) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        publish(api, NAME, 1)
        with Consumer(api, {"id": done.stdout.strip()}, batch_limit=1) as stream:
            assert [each["n"] for each in stream.consumed(7)] == [4, 5, 6, 7, 8, 9, 0]
    assert file_version(path) == FILE_VERSION

    refused = run_old(COMMIT_BY_FORMAT[version], tmp_path / "again", path)
    assert refused.returncode != 0
    assert "was written by a newer version of this broker" in refused.stderr
    assert file_version(path) == FILE_VERSION
