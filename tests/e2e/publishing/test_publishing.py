"""POST /event-types/{name}/events and …/deleted-events, over the socket."""

import gzip
import json
import zlib

import pytest
import zstandard

from tests.support.api import a_business_definition, a_definition, an_authorization, create_event_type, problem
from tests.support.builders import a_name
from tests.support.publishing import EID, metadata

ID = "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11"


def publish(api, name, body=b"[{}]", to="events", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return api.post(f"/event-types/{name}/{to}", content=content, headers=named)


def read_delivered_bytes(api, name, count, partition="0"):
    """The bytes of a stream that ends after this many events."""
    cursors = json.dumps([{"partition": partition, "offset": "BEGIN"}])
    limits = {"batch_limit": count, "stream_limit": count, "stream_timeout": 60, "batch_flush_timeout": 60}
    answer = api.get(f"/event-types/{name}/events", params=limits, headers={"X-Nakadi-Cursors": cursors})
    assert answer.status_code == 200, answer.text
    return answer.content


def events_in(lines):
    return [event for line in lines.splitlines() for event in json.loads(line).get("events", [])]


def test_events_come_out_as_they_went_in(api):
    """Published events are delivered character by character, without blanks between values, and on one line. (P1, P105,
    P107)
    """
    name = create_event_type(api)["name"]
    sent = '[{ "z" : 1.50 , "a\\u00e9" : "x \\n  \\/ y" },\r\n {"big":9223372036854775807}]'
    assert publish(api, name, sent.encode()).status_code == 200
    [line] = read_delivered_bytes(api, name, 2).splitlines()
    assert b'"events":[{"z":1.50,"a\\u00e9":"x \\n  \\/ y"},{"big":9223372036854775807}]' in line


def test_business_events_come_out_enriched(api):
    """Delivered metadata has the producer's members and the broker's additions. (P100, P101, P106)"""
    name = create_event_type(api, a_business_definition())["name"]
    sent = metadata(occurred_at="2026-11-21T13:00:00.123456789+01:00")
    assert publish(api, name, [{"a": 1, "metadata": sent, "b": 2}], X_Flow_Id="my-flow").status_code == 200
    [event] = events_in(read_delivered_bytes(api, name, 1))
    received_at = event["metadata"].pop("received_at")
    assert list(event) == ["a", "metadata", "b"]
    assert event["metadata"] == sent | {
        "event_type": name,
        "flow_id": "my-flow",
        "partition": "0",
        "published_by": "unauthenticated",
        "version": "1.0.0",
    }
    assert len(received_at) == len("2026-11-21T12:00:00.000Z")


@pytest.mark.parametrize("to", ["events", "deleted-events"])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)],
)
def test_packed_bodies(api, encoding, pack, to):
    """Bodies may be compressed with gzip or zstd. (P41, P135)"""
    name = create_event_type(api, a_business_definition(cleanup_policy="compact"))["name"]
    body = pack(json.dumps([{"metadata": metadata(partition_compaction_key="k")}]).encode())
    assert publish(api, name, body, to, Content_Encoding=encoding).status_code == 200


def test_sizes_are_counted_unpacked(api):
    """The size of an event is the size of its text, not of the bytes on the wire. (P37)"""
    name = create_event_type(api)["name"]
    body = gzip.compress(json.dumps([{"a": "x" * 999_001}]).encode())
    answer = publish(api, name, body, Content_Encoding="gzip")
    assert answer.status_code == 422
    assert answer.json()[0]["detail"] == "Event too large: 999010 bytes, max size is 999000 bytes"


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "anything"])
def test_only_posts_may_be_packed(api, encoding):
    """Any other method with a content encoding gets 406, in the common form of Problems. (P42, P46)"""
    answer = api.get("/event-types", headers={"Content-Encoding": encoding})
    assert problem(answer, 406) == "GET method doesn't support gzip content encoding"


def test_what_is_not_packed_at_all(api):
    """A body announced as gzip that is not gzip gets 400, in the common form of Problems. (P43, P46)"""
    assert problem(publish(api, "any", b"[{}]", Content_Encoding="gzip"), 400) == "Not in GZIP format"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"[{}]" * 100)[:-12]),
        ("gzip", gzip.compress(b"[{}]")[:-8] + b"\0" * 8),
        ("zstd", b"[{}]"),
        ("zstd", zstandard.ZstdCompressor().compress(b"[{}]" * 100)[:-4]),
    ],
    ids=["gzip cut off", "gzip with a wrong checksum", "no zstd at all", "zstd cut off"],
)
def test_packed_bodies_that_are_torn(api, encoding, body):
    """Corrupt or truncated compressed bodies get 400. (P44)"""
    assert problem(publish(api, create_event_type(api)["name"], body, Content_Encoding=encoding), 400)


@pytest.mark.parametrize("encoding", ["deflate", "br", "identity"])
def test_other_encodings_say_nothing(api, encoding):
    """Unknown encodings are ignored: the bytes are read unchanged. (P45)"""
    name = create_event_type(api)["name"]
    assert publish(api, name, Content_Encoding=encoding).status_code == 200
    assert problem(publish(api, name, zlib.compress(b"[{}]"), Content_Encoding=encoding), 400)


def test_bombs_do_not_go_off(api):
    """A small body with a very large content is refused before it is completely decompressed. (P40, P41)"""
    bomb = zstandard.ZstdCompressor().compress(b" " * 100_000_000)
    assert publish(api, "any", bomb, Content_Encoding="zstd").status_code == 413


def test_flow_id_and_span(api):
    """Every answer has the flow id of the request or a new one; an answer without a body has a span context.
    (P9, P10)
    """
    name = create_event_type(api)["name"]
    published = publish(api, name, X_Flow_Id="mine")
    assert (published.headers["x-flow-id"], published.headers["span_ctx"]) == ("mine", "{}")
    refused = publish(api, name, b"{")
    assert len(refused.headers["x-flow-id"]) == 24
    assert "span_ctx" not in refused.headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_other_methods(api, method):
    """A request with a method that the path does not support gets 405. (P11)"""
    assert problem(api.request(method, "/event-types/any/events"), 405)


def test_answers_may_be_packed(api):
    """An answer is compressed for clients that can decompress it. (P11a)"""
    name = create_event_type(api, schema={"required": ["ok"]})["name"]
    answer = publish(api, name, [{}] * 200, Accept_Encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.json()) == 200


def test_publishing_needs_a_token_and_its_scope(broker_with_tokens, ann_client):
    """Without a token, the answer is 401; publishing needs one scope, and deleting another. (P12, P13)"""
    definition = a_business_definition(cleanup_policy="compact")
    name = create_event_type(ann_client, definition)["name"]
    body = [{"metadata": metadata(partition_compaction_key="k")}]
    with broker_with_tokens.client("ann", scope="uid nakadi.event_stream.write") as streams:
        assert publish(streams, name, body).status_code == 200
        assert publish(streams, name, body, "deleted-events").status_code == 403
    with broker_with_tokens.client("ann", scope="uid nakadi.event_type.write") as types:
        assert publish(types, name, body).status_code == 403
        assert publish(types, name, body, "deleted-events").status_code == 200
        types.headers.pop("authorization")
        answer = publish(types, name, body)
    assert answer.status_code == 401
    assert answer.json()["type"] == "https://httpstatus.es/401"


def test_only_writers_may_publish(ann_client, bob_client):
    """A publisher that is not among the writers gets 403 with the name of the permission; the publisher's name is
    stored. (P50, P100)
    """
    name = create_event_type(ann_client, a_business_definition(authorization=an_authorization()))["name"]
    body = [{"metadata": metadata()}]
    assert problem(publish(bob_client, name, body), 403) == f"Access on WRITE event-type:{name} denied"
    assert publish(ann_client, name, body).status_code == 200
    assert events_in(read_delivered_bytes(ann_client, name, 1))[0]["metadata"]["published_by"] == "ann"


def test_blocks_take_effect_at_once(api):
    """A blocked event type takes no events until it is unblocked; this also applies to an event type that does not
    exist. (P16, P48, P49)
    """
    name = create_event_type(api)["name"]
    for blocked in (name, a_name("not.there")):
        path = f"/settings/blacklist/PRODUCER_ET/{blocked}"
        assert api.put(path).status_code == 204
        assert problem(publish(api, blocked), 403) == "Application or event type is blocked"
        assert api.delete(path).status_code == 204
    assert publish(api, name).status_code == 200


def test_an_unknown_event_type(api):
    """An unknown event type gets 404, after the body was read. (P15, P18, P24)"""
    assert problem(publish(api, "not.there", b"[]"), 404) == 'EventType "not.there" does not exist.'
    assert problem(publish(api, "not.there", b"[}"), 400).startswith("Error occurred when parsing event(s). ")


def test_hashes_choose_among_the_partitions(api):
    """The events of a key are stored in the partition that the reference would choose, in their order. (P81,
    P95, P108)
    """
    statistic = {"messages_per_minute": 1, "message_size": 1, "read_parallelism": 8, "write_parallelism": 8}
    definition = a_definition(partition_strategy="hash", partition_key_fields=["k"], default_statistic=statistic)
    name = create_event_type(api, definition)["name"]
    assert publish(api, name, [{"k": "Hello", "n": n} for n in range(50)]).status_code == 200
    assert [event["n"] for event in events_in(read_delivered_bytes(api, name, 50, "2"))] == list(range(50))


def test_tombstones_are_not_delivered(api):
    """A tombstone takes an offset, and consumers skip it. (P137, P143, P144)"""
    name = create_event_type(api, a_business_definition(cleanup_policy="compact"))["name"]
    event = {"metadata": metadata(partition_compaction_key="k")}
    assert publish(api, name, [event]).status_code == 200
    assert publish(api, name, [event], "deleted-events").status_code == 200
    assert publish(api, name, [event]).status_code == 200
    lines = read_delivered_bytes(api, name, 2)
    assert [each["metadata"]["eid"] for each in events_in(lines)] == [EID, EID]
    [partition] = api.get(f"/event-types/{name}/partitions").json()
    assert partition["newest_available_offset"].endswith("2")


def test_directed_batches_are_not_for_everyone(api):
    """Low-level streams skip a batch that is directed to one subscription. (P127)"""
    name = create_event_type(api)["name"]
    tag = f"CONSUMER_SUBSCRIPTION_ID={ID}"
    assert publish(api, name, [{"n": 1}], X_CONSUMER_TAG=tag).status_code == 200
    assert publish(api, name, [{"n": 2}]).status_code == 200
    assert events_in(read_delivered_bytes(api, name, 1)) == [{"n": 2}]
    assert problem(publish(api, name, X_CONSUMER_TAG="x"), 422).startswith("header tag parameter is imbalanced")


def test_events_of_others_are_refused_one_by_one(ann_client, admin):
    """If event owners are switched on, an event of another owner fails its batch. (P129, P133)"""
    selector = {"type": "path", "name": "user", "value": "owner"}
    definition = a_definition(schema={"properties": {"owner": {"type": "string"}}}, event_owner_selector=selector)
    name = create_event_type(ann_client, definition)["name"]
    switch = {"feature": "event_owner_selector_authz", "enabled": True}
    assert admin.post("/settings/features", json=switch).status_code == 204
    try:
        answer = publish(ann_client, name, [{"owner": "ann"}, {"owner": "bob", "metadata": {"eid": "e-1"}}])
        assert answer.status_code == 422
        assert answer.json()[1]["detail"] == "Access on WRITE event:e-1 denied"
        assert publish(ann_client, name, [{"owner": "ann"}, {}]).status_code == 200
    finally:
        admin.post("/settings/features", json=switch | {"enabled": False})


def test_a_batch_follows_a_new_timeline(api):
    """After a switch of timelines publishing continues, and both timelines are delivered. (P53)"""
    name = create_event_type(api)["name"]
    assert publish(api, name, [{"n": 1}]).status_code == 200
    assert api.post(f"/event-types/{name}/timelines", json={"storage_id": "default"}).status_code == 201
    assert publish(api, name, [{"n": 2}]).status_code == 200
    assert [event["n"] for event in events_in(read_delivered_bytes(api, name, 2))] == [1, 2]


def test_no_one_is_throttled(api):
    """Requests are never answered with 429, however fast they come. (P54)"""
    name = create_event_type(api)["name"]
    assert {publish(api, name, b"[]").status_code for _ in range(300)} == {200}
