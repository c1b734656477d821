"""Signing in to MSK: the messages of the client library, and when it requests another token."""

import logging
import socket
import struct
import threading
from base64 import urlsafe_b64decode
from contextlib import closing, suppress
from datetime import timedelta

import pytest

from nakadi.engines.common import msk_tokens
from nakadi.engines.kafka.client import ClusterAddress, new_consumer, new_producer
from nakadi.engines.kafka.cluster import Cluster
from nakadi.model.outcomes import Unavailable
from tests.support.patience import PATIENCE, until

SECRET = "never/to+be+seen"  # not real credentials
METADATA, HANDSHAKE, VERSIONS, AUTHENTICATE = 3, 17, 18, 36
REFUSED = 58


class FakeIamServer:
    """Requires clients to sign in, records their tokens, and answers no other request."""

    def __init__(self, error=0):
        self.tokens = []
        self._error = error
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listening.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        # A client that gives up closes its connection at any moment, even within a request.
        with suppress(OSError, struct.error), connection, connection.makefile("rb") as incoming:
            while size := incoming.read(4):
                body = incoming.read(struct.unpack(">i", size)[0])
                key, _, number, client = struct.unpack(">hhih", body[:10])
                answer = self._answer(key, body[10 + max(client, 0) :])
                if answer is None:
                    return
                connection.sendall(struct.pack(">ii", 4 + len(answer), number) + answer)

    def _answer(self, key, content):
        if key == VERSIONS:
            known = [(METADATA, 4), (HANDSHAKE, 1), (VERSIONS, 3), (AUTHENTICATE, 1)]
            ranges = b"".join(struct.pack(">hhhb", each, 0, newest, 0) for each, newest in known)
            return struct.pack(">hb", 0, len(known) + 1) + ranges + struct.pack(">ib", 0, 0)
        if key == HANDSHAKE:
            name = b"OAUTHBEARER"
            return struct.pack(">hih", 0, 1, len(name)) + name
        if key == AUTHENTICATE:
            self.tokens.append(content[4:].decode().partition("auth=Bearer ")[2].rstrip("\1"))
            return struct.pack(">hhiq", self._error, -1, 0, 1000)
        return None


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    msk_tokens._aws_session.cache_clear()
    yield
    msk_tokens._aws_session.cache_clear()


@pytest.fixture
def server():
    with closing(FakeIamServer()) as made:
        yield made


def address_of(server):
    # MSK uses TLS, but this server does not.
    return ClusterAddress(
        server.address, timeout_seconds=2, iam_region="eu-central-1", properties={"security.protocol": "sasl_plaintext"}
    )


def test_msk_is_asked_over_tls():
    """Without further settings, connections to MSK use TLS."""
    settings = ClusterAddress.parse("kafka://b-1.example:9098?iam=eu-central-1").client_settings()

    assert settings["security.protocol"] == "SASL_SSL"


def test_clusters_without_iam_are_asked_as_ever():
    """The engine generates a token only if the URL asks for IAM."""
    assert "oauth_cb" not in ClusterAddress.parse("kafka://b-1.example:9092").client_settings()


@pytest.mark.parametrize("kind", ["cluster", "producer", "consumer"])
def test_every_client_signs_in_by_itself(server, kind):
    """Each client sends a token before its first request."""
    client = {"cluster": Cluster, "producer": new_producer, "consumer": new_consumer}[kind](address_of(server))

    until(lambda: server.tokens)
    assert urlsafe_b64decode(server.tokens[0] + "==").startswith(b"https://kafka.eu-central-1.amazonaws.com/?Action=")
    if kind != "producer":
        client.close()


def test_a_token_is_replaced_before_it_expires(server, monkeypatch):
    """The library requests the next token while the last one is still valid, and signs in with it."""
    asked = threading.Semaphore(0)
    made = msk_tokens.new_token_and_expiry

    def count_calls(region):
        asked.release()
        return made(region)

    monkeypatch.setattr(msk_tokens, "TOKEN_LIFETIME", timedelta(seconds=3))
    monkeypatch.setattr(msk_tokens, "new_token_and_expiry", count_calls)
    client = new_consumer(address_of(server))
    try:
        for _ in range(3):
            assert asked.acquire(timeout=PATIENCE)
        until(lambda: len(set(server.tokens)) > 1)
    finally:
        client.close()


def test_a_server_that_refuses_costs_bounded_time_and_shows_no_secret(caplog):
    """If a server refuses to let a client sign in, requests end with `Unavailable`; the log says that signing in
    failed, without the key or a token.
    """
    caplog.set_level(logging.INFO)
    with closing(FakeIamServer(REFUSED)) as server:
        with closing(Cluster(address_of(server))) as cluster:

            def failure_is_logged():
                with pytest.raises(Unavailable):
                    cluster.check_partitions("t", [0])
                return "SASL authentication error" in caplog.text

            # On a busy machine, a client may not have signed in yet when the first request ends.
            until(failure_is_logged)

        assert server.tokens
        assert SECRET not in caplog.text
        assert not any(token in caplog.text for token in server.tokens)
