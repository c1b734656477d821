"""A write does not use a connection that was idle for a while."""

import socket
import threading
from contextlib import closing, suppress

import pytest

from nakadi.engines.kinesis import opening, stream
from nakadi.engines.kinesis.stream import OutgoingRecord, Stream
from nakadi.model.log_index import RecordPosition

ANSWER = b'{"FailedRecordCount":0,"Records":[{"SequenceNumber":"%d","ShardId":"shardId-0"}]}'


class Service:
    """Answers PutRecords, and resets each connection at its second request, like a load balancer that has forgotten the
    connection."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer_once, args=(connection, self.connections), daemon=True).start()

    def _answer_once(self, connection, number):
        with suppress(OSError), connection:  # a client may have closed the connection
            self._read(connection)
            body = ANSWER % number
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.1\r\ncontent-length: %d\r\n\r\n"
            connection.sendall(head % len(body) + body)
            if self._read(connection):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    def _read(self, connection):
        """Read a request with its body; returns nothing when the client has closed the connection."""
        received = b""
        while b"\r\n\r\n" not in received:
            more = connection.recv(65536)
            if not more:
                return b""
            received += more
        head, _, body = received.partition(b"\r\n\r\n")
        [length] = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        while len(body) < length:
            body += connection.recv(65536)
        return body

    def close(self):
        self._listening.close()


@pytest.fixture
def service(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nothing")
    with closing(Service()) as made:
        yield made


@pytest.fixture
def open_stream(service):
    with closing(
        Stream(opening.new_kinesis_client({"region": "eu-central-1", "endpoint": service.url}), "orders")
    ) as made:
        yield made


RECORD = OutgoingRecord("t/0", 0, b"event")


def test_a_write_after_a_pause_has_a_connection_of_its_own(service, open_stream, monkeypatch):
    """A function that was frozen does not use a write to find out whether its connection still exists: the publisher
    would get an unknown outcome for a valid event."""
    clock = [1000.0]
    monkeypatch.setattr(stream.time, "time", lambda: clock[0])
    assert open_stream.put_records([RECORD]) == [RecordPosition("shardId-0", 1)]

    clock[0] += stream.IDLE_CONNECTION_MAX_AGE_SECONDS

    assert open_stream.put_records([RECORD]) == [RecordPosition("shardId-0", 2)]
    assert service.connections == 2
