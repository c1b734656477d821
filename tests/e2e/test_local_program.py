"""The program as people use it: started in a terminal, used with curl, and ended with Ctrl-C."""

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.support import http
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE
from tests.support.processes import ENVIRONMENT, run_process
from tests.support.signalled import end_at_each_step
from tests.support.wire import Wire

EVENT_TYPE = {
    "name": "kept.thing",
    "owning_application": "me",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": "{}"},
}


class Program:
    def __init__(self, process):
        self.process = process
        self.greeting = ""
        while "Ctrl-C ends it." not in self.greeting:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            self.greeting += line
        self.url = re.search(r"ready at (\S+)", self.greeting)[1]

    def end(self, how=signal.SIGINT):
        """End the program, and return its exit code and its stderr."""
        self.process.send_signal(how)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@contextmanager
def start_program(*arguments):
    with run_process([sys.executable, "-W", "error", "-m", "nakadi.local", "--port=0", *arguments]) as process:
        yield Program(process)


def test_the_greeting_names_the_address_and_the_data_file(tmp_path):
    """The greeting names the address and the data file."""
    with start_program("--data", str(tmp_path / "new" / "folder")) as program:
        assert f"Everything is kept in {tmp_path / 'new' / 'folder' / 'nakadi.db'}\n" in program.greeting
        assert http.get(f"{program.url}/health").text == "OK"

        assert program.end() == (0, "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_its_curl_lines_work_when_pasted():
    """Each line of the greeting that begins with curl works."""
    with start_program("--engine", "memory") as program:
        lines = [line for line in program.greeting.splitlines() if line.startswith("  curl ")]
        answers = [
            subprocess.run(
                f"{line} -sf", env=plain_environment(), shell=True, capture_output=True, text=True, check=True
            ).stdout
            for line in lines
        ]

    assert len(lines) == 3
    assert answers[0] == "OK"
    assert "hello.world" in [each["name"] for each in json.loads(answers[2])]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_program_ends_cleanly_with_a_connected_client(how):
    """Ctrl-C and SIGTERM end the program without a traceback, although clients are connected."""
    with start_program("--engine=memory") as program, Wire(program.url) as wire:
        wire.send("GET /health HTTP/1.1").response()

        assert program.end(how) == (0, "")


def test_the_program_ends_cleanly_at_each_step_of_its_start(tmp_path):
    """Ctrl-C before the greeting ends the program with exit code 130; SIGTERM, and both signals after the greeting, end
    it with 0. It never prints a traceback.
    """
    for end in end_at_each_step("nakadi.local", "--port=0", "--data", str(tmp_path / "data")):
        ready = "Ctrl-C ends it." in end.said
        assert (end.code, end.complained) == (130 if end.how == signal.SIGINT and not ready else 0, ""), end


def test_what_was_said_is_known_after_it_was_killed(tmp_path):
    """After a broker was killed at work, its next start finds everything that was acknowledged."""
    with start_program("--data", str(tmp_path)) as program:
        assert http.post(f"{program.url}/event-types", json=EVENT_TYPE).status_code == 201
        program.end(signal.SIGKILL)

    with start_program("--data", str(tmp_path)) as program:
        names = [each["name"] for each in http.get(f"{program.url}/event-types").json()]

    assert "kept.thing" in names


def test_a_file_of_a_newer_version_is_left_alone(tmp_path):
    """A data file that a newer version wrote is refused in one sentence."""
    with start_program("--data", str(tmp_path)) as program:
        assert program.end() == (0, "")
    with sqlite3.connect(tmp_path / "nakadi.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()

    command = [sys.executable, "-m", "nakadi.local", "--port=0", "--data", str(tmp_path)]
    run = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert run.returncode == 1
    assert run.stdout == ""
    assert "was written by a newer version of this broker" in run.stderr
    assert run.stderr.count("\n") == 1


def publish_until_killed(program, seconds):
    """Publish one event after the other, and kill the program this long after the first; return how many were
    acknowledged.
    """
    killer = threading.Timer(seconds, program.process.kill)
    acknowledged = 0
    with suppress(httpx.TransportError), httpx.Client(base_url=program.url, timeout=PATIENCE) as api:
        while api.post(f"/event-types/{EVENT_TYPE['name']}/events", json=[{}]).status_code == 200:
            acknowledged += 1
            if acknowledged == 1:
                killer.start()
    killer.join()
    program.process.wait()
    return acknowledged


def start_error(data):
    command = [sys.executable, "-m", "nakadi.local", "--port=0", "--data", str(data)]
    run = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1), run.stderr
    return run.stderr


def test_a_loss_is_reported_and_has_to_be_accepted(tmp_path):
    """The program starts normally after kills; once its file was removed, it starts only with an option that accepts
    the loss.
    """
    acknowledged = 0
    for seconds in (0.05, 0.3):
        with start_program("--data", str(tmp_path)) as program:
            http.post(f"{program.url}/event-types", json=EVENT_TYPE)
            acknowledged += publish_until_killed(program, seconds)
    with start_program("--data", str(tmp_path)) as program:
        [partition] = http.get(f"{program.url}/event-types/{EVENT_TYPE['name']}/partitions").json()
        assert int(partition["newest_available_offset"][-18:]) >= acknowledged - 1
        assert program.end() == (0, "")
    (tmp_path / "nakadi.db").unlink()

    said = start_error(tmp_path)
    assert "nakadi.db is not there, and it was marked at" in said
    assert re.search(r"It had \d+ event types, 0 subscriptions, ", said)
    assert not (tmp_path / "nakadi.db").exists()
    with start_program("--data", str(tmp_path), "--accept-loss") as program:
        assert http.get(f"{program.url}/event-types/{EVENT_TYPE['name']}").status_code == 404
        code, told = program.end()
        assert (code, told.count("\n")) == (0, 1)
        assert "Accepting the loss: " in told
    with start_program("--data", str(tmp_path)) as program:
        assert program.end() == (0, "")


def test_its_logs_can_be_read_by_machines():
    """With `--log-format json` and the access log, a request is a JSON line with its flow id, and no token is in it."""
    with start_program("--engine=memory", "--log-format=json", "--access-log") as program:
        headers = {"X-Flow-Id": "f-1", "Authorization": "Bearer very-secret-token"}
        http.get(f"{program.url}/event-types?access_token=hush-hush", headers=headers)
        _, said = program.end()

    (line,) = [json.loads(each) for each in said.splitlines()]
    assert (line["level"], line["logger"], line["flow_id"]) == ("INFO", "nakadi.access", "f-1")
    assert line["message"].startswith("GET /event-types 200 ")
    assert "very-secret-token" not in said
    assert "hush-hush" not in said


def test_the_program_logs_no_requests_by_default():
    """By default, the program logs nothing about requests, not even about invalid ones."""
    with start_program("--engine=memory") as program:
        http.get(f"{program.url}/event-types")
        with Wire(program.url) as wire:
            wire.socket.sendall(b"rubbish\r\n\r\n")
            assert wire.response()[0] == 400

        assert program.end() == (0, "")
