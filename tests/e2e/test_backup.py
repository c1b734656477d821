"""The drill: a broker is backed up while it works, everything is deleted and restored, and its streams continue."""

import re
import shlex
import shutil
import signal
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest

from nakadi.local.backups import backup, restore
from tests.support.api import create_event_type
from tests.support.backups import BusyFolder
from tests.support.consumer import Consumer, owners
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE, until
from tests.support.processes import ROOT_ENVIRONMENT, run_process
from tests.support.subscriptions import committed_offsets, create_subscription, offset_text

[SECTION] = re.findall(
    r"^### Backup and restore$(.*?)^##", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE | re.DOTALL
)
TAKING, RESTORING = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)]


@contextmanager
def serve_folder(data):
    """A broker with this data folder, as `nakadi serve` starts it."""
    command = [sys.executable, "-m", "nakadi_cli", "serve", "--port", "0", "--data", str(data)]
    with run_process(command, ROOT_ENVIRONMENT) as process:
        greeting = ""
        while "Ctrl-C ends it." not in greeting:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            greeting += line
        with httpx.Client(base_url=re.search(r"ready at (\S+)", greeting)[1], timeout=PATIENCE) as api:
            yield api, process


def run_lines(lines, tmp_path):
    """Run commands of the page, with its folders in the test's folder."""
    for line in lines:
        words = shlex.split(line, comments=True)
        arguments = [
            word.replace("/mnt/backups", str(tmp_path / "backups")).replace("/var/lib/nakadi", str(tmp_path / "data"))
            for word in words[2:]
        ]
        assert words[0] == "nakadi"
        if words[1] != "serve":
            assert {"backup": backup, "restore": restore}[words[1]].main(arguments) == 0


class Publisher(threading.Thread):
    """Publishes one event after another, and counts the acknowledged ones."""

    def __init__(self, url, name):
        super().__init__()
        self.acknowledged = 0
        self._url, self._name = url, name
        self._done = threading.Event()
        self.start()

    def run(self):
        with httpx.Client(base_url=self._url, timeout=PATIENCE) as api:
            while not self._done.is_set():
                answer = api.post(f"/event-types/{self._name}/events", json=[{"n": self.acknowledged}])
                assert answer.status_code == 200, answer.text
                self.acknowledged += 1
                self._done.wait(0.01)

    def wait_for(self, count):
        while self.acknowledged < count:
            assert self.is_alive()
            self._done.wait(0.002)

    def end(self):
        self._done.set()
        self.join()
        return self.acknowledged


def test_everything_is_deleted_and_restored_and_streams_go_on(tmp_path, capsys):
    """After the drill of the page, no event is missing that was acknowledged before the backup began, and a stream
    continues after the cursor that was committed before it. (B1, B8, B9)
    """
    with serve_folder(tmp_path / "data") as (api, process):
        name = create_event_type(api)["name"]
        subscription = create_subscription(api, name, read_from="begin")
        publisher = Publisher(api.base_url, name)
        try:
            publisher.wait_for(10)
            with Consumer(api, subscription, batch_limit=1, stream_limit=4) as stream:
                assert [each["n"] for each in stream.consumed(4)] == [0, 1, 2, 3]
                stream.rest()
            until(lambda: set(owners(api, subscription).values()) == {""})
            before = publisher.acknowledged
            run_lines(TAKING, tmp_path)
        finally:
            acknowledged = publisher.end()
        process.send_signal(signal.SIGKILL)
        process.wait()
    (taken, verified, listed), said = (each.splitlines() for each in capsys.readouterr())
    assert said == []
    backup_id = re.match(r"The backup (\S+) is complete", taken)[1]
    assert verified == f"1 backup is whole; the newest is {backup_id}."
    assert listed.startswith(backup_id)
    shutil.rmtree(tmp_path / "data")

    run_lines(RESTORING, tmp_path)

    with serve_folder(tmp_path / "data") as (api, _):
        [partition] = api.get(f"/event-types/{name}/partitions").json()
        there = int(partition["newest_available_offset"][-18:]) + 1
        assert before <= there <= acknowledged
        assert committed_offsets(api, subscription) == {(name, "0"): offset_text(3)}
        api.post(f"/event-types/{name}/events", json=[{"n": "new"}]).raise_for_status()
        with Consumer(api, subscription, batch_limit=100, batch_flush_timeout=1) as stream:
            assert [each["n"] for each in stream.consumed(there - 3)] == [*range(4, there), "new"]


def test_the_backup_command_names_data_outside_the_folder(tmp_path, capsys):
    """The command names stores and archives outside the data folder, because they are not in the backup. (B2)"""
    busy = BusyFolder(tmp_path / "data")
    busy.publish(3)
    busy.archive()
    busy.close()
    arguments = [str(tmp_path / "backups"), "--data", str(busy.path)]
    here = f"sqlite:///{busy.path}/nakadi.db"
    environ = {"NAKADI_ARCHIVE": "s3://bucket/old", "NAKADI_EVENT_LOG": "kafka://k:9092", "NAKADI_REGISTRY": here}

    assert backup.main(arguments, environ) == 0

    _, said = capsys.readouterr()
    assert said.splitlines() == [
        "It has nothing of kafka://k:9092 (NAKADI_EVENT_LOG), which needs a backup of its own.",
        "It has nothing of s3://bucket/old (NAKADI_ARCHIVE), which needs a backup of its own.",
    ]


def test_old_backups_are_removed(tmp_path, capsys):
    """`--keep` leaves the newest backups, with everything they need. (B13)"""
    busy = BusyFolder(tmp_path / "data")
    busy.close()
    arguments = [str(tmp_path / "backups"), "--data", str(busy.path)]
    for _ in range(3):
        assert backup.main([*arguments, "--keep", "2"], {}) == 0
    printed = capsys.readouterr().out

    assert printed.count("is removed.") == 1
    assert backup.main([*arguments[:1], "--list"], {}) == 0
    assert capsys.readouterr().out.count("files") == 2
    assert backup.main([*arguments[:1], "--verify"], {}) == 0


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        (backup, ["backups", "--data", "nowhere"], "No backup was made. There is no data file"),
        (backup, ["nowhere", "--list"], "has no backups of this broker"),
        (backup, ["nowhere", "--verify"], "has no backups of this broker"),
        (restore, ["nowhere", "--data", "new"], "Nothing usable was restored."),
    ],
)
def test_a_failure_is_one_sentence(program, arguments, said, tmp_path, monkeypatch, capsys):
    """A command that cannot succeed prints one sentence, with exit code 1. (B14)"""
    monkeypatch.chdir(tmp_path)

    assert program.main(arguments) == 1

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_damage_is_named(tmp_path, capsys):
    """`--verify` reads every byte, names the files that are damaged, and fails. (B5)"""
    busy = BusyFolder(tmp_path / "data")
    busy.publish(3)
    busy.close()
    backups = tmp_path / "backups"
    assert backup.main([str(backups), "--data", str(busy.path)], {}) == 0
    largest = max((backups / "pieces").glob("*/*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[100] ^= 1
    largest.write_bytes(content)

    assert backup.main([str(backups), "--verify"], {}) == 1
    assert "nakadi.db is damaged." in capsys.readouterr().err
    assert restore.main([str(backups), "--data", str(tmp_path / "new")]) == 1
    assert "nakadi.db is damaged in the backup" in capsys.readouterr().err
    assert backup.main([str(backups), "--data", str(busy.path)], {}) == 0
    assert backup.main([str(backups), "--verify"], {}) == 0
