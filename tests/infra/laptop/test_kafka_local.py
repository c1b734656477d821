"""A Kafka on this machine: its needs, and when it counts as started. These tests start no Kafka server."""

import socket
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.laptop import kafka_local
from infra.laptop.kafka_local import Server, missing_requirement, start_reliably

RUNNING = SimpleNamespace(poll=lambda: None)


@pytest.fixture(autouse=True)
def clear_cache():
    missing_requirement.cache_clear()
    yield
    missing_requirement.cache_clear()


@contextmanager
def listening_port(answer):
    """A port on which each connection gets this function's answer to its request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(answer(connection.recv(100)))

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    with closing(listener):
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    serving.join()


@pytest.mark.parametrize(
    ("answer", "is_kafka"),
    [
        # Kafka's answer has a size, the number of the request, and further bytes.
        (lambda request: b"\0\0\1\0" + request[8:12] + b"\0\0", True),
        (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (lambda _: b"", False),
    ],
    ids=["kafka", "another protocol", "silence"],
)
def test_only_what_answers_as_kafka_does_is_a_server(answer, is_kafka):
    """Only an answer like Kafka's shows that a server has started, because another process may have taken the port."""
    with listening_port(answer) as address:
        assert kafka_local._answers(Server(address, RUNNING, Path("log"))) is is_kafka


@pytest.fixture
def attempts(monkeypatch, tmp_path):
    """Make this number of starts fail; `started` are the servers that have started."""
    found = SimpleNamespace(failing=0, started=[], stopped=[])
    (tmp_path / "log").write_text("Address already in use")

    def start(_folder):
        found.started.append(Server("127.0.0.1:9", SimpleNamespace(poll=lambda: 1), tmp_path / "log"))
        return found.started[-1]

    monkeypatch.setattr(kafka_local, "start", start)
    monkeypatch.setattr(kafka_local, "stop_process", found.stopped.append)
    monkeypatch.setattr(kafka_local, "_answers", lambda _: len(found.started) > found.failing)
    return found


def test_a_server_whose_port_was_taken_is_started_again(attempts, tmp_path):
    attempts.failing = 2

    assert start_reliably(tmp_path) is attempts.started[2]
    assert attempts.stopped == [each.process for each in attempts.started[:2]]


def test_a_server_that_never_starts_is_given_up_and_says_why(attempts, tmp_path):
    attempts.failing = 10

    with pytest.raises(RuntimeError, match="Address already in use"):
        start_reliably(tmp_path)
    assert len(attempts.started) == len(attempts.stopped) == 3


def test_a_kafka_that_was_not_fetched_whole_is_missing(monkeypatch, tmp_path):
    """Jars without the mark that follows the last of them come from an interrupted download, and count as missing."""
    monkeypatch.setattr(kafka_local, "JARS", tmp_path)
    (tmp_path / "kafka_2.13-4.1.0.jar").touch()

    assert missing_requirement() == f"{tmp_path} has not all jars of it, which `make test` gets by Maven"


@pytest.mark.parametrize(("version", "is_missing"), [("1.8.0_412", True), ("11.0.2", True), ("17", False)])
def test_an_old_java_is_as_good_as_none(monkeypatch, tmp_path, version, is_missing):
    """An old Java counts as missing, because a Kafka server on it would end at once."""
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    java.chmod(0o755)
    (tmp_path / ".jars").touch()
    monkeypatch.setattr(kafka_local, "JARS", tmp_path)
    monkeypatch.setattr(kafka_local, "find_java", lambda: str(java))

    assert bool(missing_requirement()) is is_missing
