"""Requests that would use up the memory of the whole process."""

from __future__ import annotations

import gzip
import json
import select
from contextlib import suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.support.attacked import LONG, MEGABYTE, start_attacked_broker
from tests.support.patience import until
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

DEFINITION = {"owning_application": "me", "category": "undefined", "schema": {"type": "json_schema", "schema": "{}"}}


def post(broker, path, body, **headers):
    """Send a POST request, and return the status and the body of the answer."""
    connection = HTTPConnection(urlsplit(broker.url).netloc, timeout=120)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get_body(broker, path):
    """The body of the answer to a GET."""
    with urlopen(f"{broker.url}{path}", timeout=60) as answer:
        return answer.read()


def publish_compressed(broker, name, body):
    """Publish a batch that is compressed with gzip, and return the answer."""
    return post(broker, f"/event-types/{name}/events", gzip.compress(body, 1), **{"Content-Encoding": "gzip"})


def an_event_type(broker, name, **changes):
    status, answer = post(broker, "/event-types", json.dumps({"name": name, **DEFINITION, **changes}).encode())
    assert status == 201, answer
    return name


def batch_of(event, size):
    """A batch with as many of these events as fit into this number of bytes."""
    return b"[" + b",".join([event] * (size // (len(event) + 1))) + b"]"


@pytest.fixture
def idle_memory(broker):
    """The memory of the broker after it has answered all earlier requests."""
    broker.forget_peak()
    return broker.memory()


def test_millions_of_tiny_events_are_refused(broker, idle_memory):
    """Twenty-two million empty events, compressed to 65 KB, get 413, and take little more memory than their unpacked
    size.
    """
    status, answer = publish_compressed(broker, an_event_type(broker, "tiny"), b"[" + b"{}," * 21_999_999 + b"{}]")

    assert (status, json.loads(answer)["detail"]) == (413, "The batch has more than 10000 events")
    assert broker.peak_memory() - idle_memory < 3 * 66 * MEGABYTE
    until(lambda: broker.memory() - idle_memory < 30 * MEGABYTE)


def test_half_a_million_tiny_events_are_refused_unparsed(broker, idle_memory):
    """To refuse half a million empty events, compressed to 1.5 KB, the broker needs memory only for their text."""
    status, _ = publish_compressed(broker, an_event_type(broker, "half"), b"[" + b"{}," * 499_999 + b"{}]")

    assert status == 413
    assert broker.peak_memory() - idle_memory < 20 * MEGABYTE


def test_ten_thousand_tiny_events_take_little(broker, idle_memory):
    """A batch with the largest permitted number of events takes less than two kilobytes of memory for each event,
    including the stored event.
    """
    status, answer = publish_compressed(broker, an_event_type(broker, "many"), b"[" + b"{}," * 9_999 + b"{}]")

    assert (status, answer) == (200, b"")
    assert broker.peak_memory() - idle_memory < 15 * MEGABYTE


SHAPES = {
    "lists": b'{"a":[' + b",".join([b"[]"] * 100_000) + b"]}",
    "towers": b'{"a":[' + b",".join([b"[" * 100 + b"]" * 100] * 1_000) + b"]}",
    "objects": b'{"a":[' + b",".join([b'{"a":{},"b":"' + b"c" * 40 + b'"}'] * 12_000) + b"]}",
    "numbers": b'{"a":[' + b",".join([b"0.5"] * 200_000) + b"]}",
    "digits": b'{"a":[' + b",".join([b"0"] * 270_000) + b"]}",
    "names": b"{" + b",".join(b'"%x":1' % number for number in range(60_000)) + b"}",
    "long names": b"{" + b",".join(b'"%s%x":1' % (b"k" * 300, number) for number in range(3_000)) + b"}",
    "letters": ('{"a":"' + "a" * 900_000 + '😀"}').encode(),
    "blanks": b'{ "a" :' + b" " * 900_000 + b"1 }",
}
OFTEN = ("numbers", "names", "letters")


@pytest.mark.parametrize("shape", SHAPES if LONG else OFTEN)
def test_a_body_takes_a_few_times_its_size(broker, idle_memory, shape, record_property):
    """Any body takes less than eight times its size in memory, stored events included."""
    body = batch_of(SHAPES[shape], 16 * MEGABYTE)
    status, answer = publish_compressed(broker, an_event_type(broker, f"shape.{shape.replace(' ', '-')}"), body)

    factor = (broker.peak_memory() - idle_memory) / len(body)
    record_property("figures", f"{len(body) / MEGABYTE:.1f} MB of {shape}: {factor:.1f} times that in memory")
    assert (status, answer) == (200, b"")
    assert factor < 8
    # This broker keeps one copy of the events in memory, and the interpreter keeps some memory for the next batch.
    until(lambda: broker.memory() - idle_memory < len(body) + 25 * MEGABYTE)


@pytest.mark.parametrize("body", [b"[" * 16_000_000, b"[{" + b"{" * 16_000_000, b"[" + b'{"a":{}}' * 2_000_000])
def test_what_is_no_batch_takes_no_more(broker, idle_memory, body):
    """A body that cannot be parsed takes at most three times its size in memory."""
    status, _ = publish_compressed(broker, an_event_type(broker, f"rubbish.{len(body)}"), body)

    assert status in (400, 413)
    assert broker.peak_memory() - idle_memory < 3 * len(body) + 20 * MEGABYTE


def test_a_long_flow_id_is_refused(broker, idle_memory):
    """A header of 200 KB is not copied into each of two thousand events."""
    name = an_event_type(broker, "flowing", category="business", enrichment_strategies=["metadata_enrichment"])
    metadata = {"eid": "105a76d8-db49-4144-ace7-e683e8f4ba46", "occurred_at": "2026-01-01T00:00:00Z"}
    body = batch_of(json.dumps({"metadata": metadata}).encode(), 306_000)

    status, answer = post(broker, f"/event-types/{name}/events", body, **{"X-Flow-Id": "f" * 200_000})
    assert (status, json.loads(answer)["detail"]) == (400, "X-Flow-Id has more than 1000 characters")

    assert post(broker, f"/event-types/{name}/events", body, **{"X-Flow-Id": "f" * 1_000})[0] == 200
    assert broker.peak_memory() - idle_memory < 30 * MEGABYTE


@pytest.mark.parametrize(("size", "expected"), [(30 * MEGABYTE, 413), (2 * MEGABYTE, 422)])
def test_a_long_owning_application_is_refused(broker, idle_memory, size, expected):
    """The broker does not store an application's name of several megabytes, and listing event types stays quick."""
    definition = {"name": "owned", **DEFINITION, "owning_application": "x" * size}
    status, _ = post(broker, "/event-types", json.dumps(definition).encode())

    assert status == expected
    assert b"owned" not in get_body(broker, "/event-types")
    assert broker.peak_memory() - idle_memory < 20 * MEGABYTE


def test_a_registry_body_of_many_values_is_refused(broker, idle_memory):
    """A deep and wide body for an event type is refused before it is parsed."""
    body = b'{"schema":[' + b",".join([b"[" * 100 + b"]" * 100] * 10_000) + b"]}"
    status, _ = post(broker, "/event-types", gzip.compress(body), **{"Content-Encoding": "gzip"})

    assert status == 413
    assert broker.peak_memory() - idle_memory < 20 * MEGABYTE


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker_with_tokens(issuer):
    """A broker that requires tokens, and limits the bodies of all requests together to 100 MB."""
    settings = {"NAKADI_AUTH": "jwt", "NAKADI_AUTH_JWKS": str(issuer.path), "NAKADI_AUTH_ISSUER": ISSUER}
    with start_attacked_broker(
        **settings, NAKADI_AUTH_AUDIENCE=AUDIENCE, NAKADI_MAX_REQUEST_MEMORY_BYTES="100000000"
    ) as broker:
        yield broker
        assert broker.alive()
        assert broker.tracebacks() == []


def announced_request(broker, *headers):
    """A connection over which the client has announced a body of 60 MB, but not sent it."""
    head = ("POST /event-types/x/events HTTP/1.1", "Content-Type: application/json", "Content-Length: 60000000")
    return broker.wire().send(*head, *headers)


def send_on(wire, size):
    """Send a part of the body; a server that has refused the request may close the connection meanwhile."""
    with suppress(OSError):
        wire.socket.sendall(b" " * size)


def test_without_a_token_nothing_is_kept(broker_with_tokens):
    """Fifteen clients with large bodies and no token are refused at once, and none of their bytes stay in memory."""
    broker_with_tokens.forget_peak()
    before = broker_with_tokens.memory()
    wires = [announced_request(broker_with_tokens) for _ in range(15)]
    statuses = [wire.response()[0] for wire in wires]
    for wire in wires:
        send_on(wire, 20 * MEGABYTE)
        wire.socket.close()

    assert statuses == [401] * 15
    assert broker_with_tokens.peak_memory() - before < 30 * MEGABYTE


def test_bodies_in_work_have_a_limit_together(broker_with_tokens, issuer):
    """Even with a token, all bodies together stay below the limit; clients with further bodies get 503, and can send
    these again later.
    """
    token = f"Authorization: Bearer {issuer.token()}"
    before = broker_with_tokens.memory()
    broker_with_tokens.forget_peak()
    wires = [announced_request(broker_with_tokens, token) for _ in range(15)]
    for wire in wires:
        send_on(wire, 20 * MEGABYTE)
    refused = [wire for wire in wires if select.select([wire.socket], [], [], 0)[0]]
    answers = [wire.response() for wire in refused]

    assert {(status, headers["retry-after"]) for status, headers, _ in answers} == {(503, "1")}
    assert 15 - len(refused) <= 5
    # While a body is assembled, it temporarily takes twice its size.
    assert broker_with_tokens.peak_memory() - before < 200 * MEGABYTE

    for wire in wires:
        wire.socket.close()
    headers = {"Authorization": f"Bearer {issuer.token()}", "Content-Type": "application/json"}
    body = b"[" + b" " * 10 * MEGABYTE + b"]"
    until(lambda: post(broker_with_tokens, "/event-types/nothing/events", body, **headers)[0] == 404)
