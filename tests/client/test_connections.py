"""Requests return an answer or `NoAnswer`, use the current token, and work with proxies and TLS."""

import asyncio
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from nakadi_client import Connection, Producer, Refused
from nakadi_client.aio import Producer as AsyncProducer
from nakadi_client.answers import Answer
from nakadi_client.connections import Api, AsyncApi, Request, compressor, connection_of
from nakadi_client.errors import NoAnswer
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE


class Tokens:
    """A source that provides the next token after one was refused."""

    def __init__(self, *tokens):
        self._tokens = list(tokens)
        self.refused = 0

    def get(self):
        return self._tokens[0]

    def refuse(self):
        self.refused += 1
        self._tokens.append(self._tokens.pop(0))


def answer_with_token_check(request):
    return httpx.Response(200 if request.headers["Authorization"] == "Bearer good" else 401)


def send(connection, *, in_loop):
    """Send a request in a thread or on a loop."""
    request = Request("GET", "/health")
    if not in_loop:
        return Api(connection).send(request)
    return asyncio.run(AsyncApi(connection).send(request))


def connection_with(tokens, answer=answer_with_token_check):
    transport = httpx.MockTransport(answer)
    return Connection("http://broker.test", token=tokens, transport=transport, async_transport=transport)


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_refused_token_is_replaced_once(in_loop):
    """After 401, the source provides another token, and the request is repeated once."""
    assert send(connection_with(Tokens("bad", "good")), in_loop=in_loop).status == 200
    tokens = Tokens("bad", "worse")
    assert send(connection_with(tokens), in_loop=in_loop).status == 401
    assert tokens.refused == 1


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize(
    ("fault", "sent"), [(httpx.ConnectError, False), (httpx.ReadTimeout, True), (httpx.RemoteProtocolError, True)]
)
def test_what_keeps_an_answer_away_is_a_value(in_loop, fault, sent):
    """`NoAnswer` says whether the request may have reached the broker."""

    def fail(request):
        raise fault("on purpose", request=request)

    answer = send(connection_with("good", fail), in_loop=in_loop)
    assert isinstance(answer, NoAnswer)
    assert answer.sent is sent
    assert "good" not in str(answer)


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_source_of_tokens_that_fails_is_no_end(in_loop):
    """If the source of tokens fails, the request counts as unanswered, so the client will repeat it."""

    def fail():
        raise RuntimeError("the vault is closed")

    assert isinstance(send(connection_with(fail), in_loop=in_loop), NoAnswer)


def test_a_url_without_a_host_is_refused():
    for url in ("broker", "ftp://broker", "http://"):
        with pytest.raises(ValueError, match="URL"):
            Connection(url)
    with pytest.raises(ValueError, match="token"):
        connection_of(Connection("http://broker"), "token")


def test_an_unknown_compression_is_refused():
    assert compressor(None) is None
    assert len(compressor("gzip")(b"a" * 10_000)) < 200


class Proxy:
    """A proxy for plain HTTP that records its requests."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                with client:
                    self.asked.append(client.recv(65_536).split(b"\r\n")[0])
                    client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def close(self):
        self._listening.close()


def test_requests_go_through_a_proxy():
    """A request through a proxy names the whole URL."""
    proxy = Proxy()
    with Producer(Connection("http://broker.test", proxy=proxy.url), "sent") as producer:
        delivery = producer.send({"n": 1})
    proxy.close()
    with pytest.raises(Refused, match="404"):
        delivery.result(PATIENCE)
    assert proxy.asked[0] == b"POST http://broker.test/event-types/sent/events HTTP/1.1"


def test_a_certificate_is_checked_against_the_authorities_that_are_given(tmp_path):
    """A broker with an unknown certificate gets no request. If the application names the certificate's authority, the
    broker gets the request, with threads and with asyncio.
    """
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key", "-out", tmp_path / "certificate"]
    try:
        subprocess.run([*command, *names], check=True, capture_output=True, env=plain_environment())
    except FileNotFoundError:
        pytest.skip("there is no openssl")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    with TlsServer(served) as url:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate"))
        assert isinstance(send(Connection(url), in_loop=False), NoAnswer)
        assert send(Connection(url, verify=trusting), in_loop=False) == Answer(200)
        assert send(Connection(url, verify=trusting), in_loop=True) == Answer(200)
        assert AsyncProducer(Connection(url, verify=trusting), "t").waiting == 0


def test_only_https_needs_authorities_to_trust(monkeypatch):
    """Reading the trusted authorities takes longer than a request, so a client of an `http` URL does not read them."""
    read = []
    monkeypatch.setattr(
        ssl, "create_default_context", lambda **_: read.append(1) or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    for url, expected in (("http://localhost", 0), ("https://localhost", 1)):
        Connection(url).client().close()
        assert len(read) == expected


class TlsServer:
    """A TLS server that answers one request on each connection."""

    def __init__(self, context):
        self._context = context
        self._listening = socket.create_server(("127.0.0.1", 0))

    def __enter__(self):
        threading.Thread(target=self._serve, daemon=True).start()
        return f"https://localhost:{self._listening.getsockname()[1]}"

    def __exit__(self, *_):
        self._listening.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with suppress(OSError), self._context.wrap_socket(client, server_side=True) as safe:
                safe.recv(65_536)
                safe.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("is_stream", [False, True], ids=["request", "stream"])
def test_a_connection_that_is_being_made_while_all_are_closed_ends_with_its_request(monkeypatch, is_stream):
    """If another thread closes the connections while a request makes one, this one is closed after the request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        api = Api(Connection(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        connect = socket.create_connection

        def connect_while_all_are_closed(*place, **options):
            api.close()
            return connect(*place, **options)

        monkeypatch.setattr(socket, "create_connection", connect_while_all_are_closed)

        def answer():
            connection, _ = listening.accept()
            connection.settimeout(PATIENCE)
            with connection:
                assert connection.recv(65536).endswith(b"\r\n\r\n")
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                return connection.recv(1)

        with ThreadPoolExecutor(1) as threads:
            rest = threads.submit(answer)
            if is_stream:
                with api.stream(Request("GET", "/")) as response:
                    assert response.read() == b"{}"
            else:
                assert api.send(Request("GET", "/")).status == 200
            assert rest.result() == b""
