"""The broker's additions are inserted at the right place, whatever surrounds it."""

import json
import random
from datetime import UTC, datetime

import pytest

from nakadi.model.event_type import Version
from nakadi.publishing import records
from nakadi.publishing.batch import parse_piece
from nakadi.publishing.enrichment import BatchOrigin
from nakadi.publishing.records import RecordMaker, Stamps, member_bounds
from tests.support.everything import choose_by_suite
from tests.support.publishing import EID, a_business_type
from tests.support.publishing_model import spelled_members
from tests.support.random_events import NAMES, SPELLINGS, TEXTS, RandomSchemas, spell

ORIGIN = BatchOrigin(
    published_by="ann", flow_id="f", received_at=datetime(2026, 11, 21, tzinfo=UTC), schema_version=Version()
)
STAMP = {"published_by": "ann", "received_at": "2026-11-21T00:00:00.000Z", "event_type": "t", "version": "1.0.0"}


@pytest.mark.parametrize(
    "event",
    [
        '{"metadata":{"x":1},"a":1}',
        '{"a":1,"metadata":{"x":1}}',
        '{"a":{"metadata":{"x":1}},"metadata":{"x":1}}',
        '{"b\\"metadata":{"x":1},"metadata":{"x":1}}',
        '{"a":1.50,"metadata":{"x":1},"b":"\\u00e9"}',
        '{"\\u0061\\"metadata\\":":{"metadata":{"x":1}},"metadata":{"x":1},"b":1.0E0}',
        '{"metadata":{"x":"\\u00e9"},"a":"\\/"}',
        '{"a":{"metadata":{"x":"é"}},"metadata":{"x":"\\u00e9"}}',
        '{"\\u006detadata2":{},"\\u006detadata":{"x":1},"a":1.50}',
    ],
)
def test_a_member_is_found_in_its_place(event):
    """The bounds that are found are those of the event's own member, whatever the spelling of its name. (P105, P106)"""
    start, end = member_bounds(event.encode(), "metadata")
    text = event.encode()
    assert json.loads(text[start:end]) == json.loads(event)["metadata"]
    replaced = json.loads(text[:start] + b"7" + text[end:])
    assert replaced == json.loads(event) | {"metadata": 7}


def a_hostile_event(draw, schemas):
    """An event whose members beside the metadata, and nested ones, have names and values that look like metadata."""
    metadata = {"eid": EID, draw.choice(("span_ctx", "x")): {draw.choice(NAMES): draw.choice(TEXTS)}}
    members = [(draw.choice(NAMES), schemas.anything(3)) for _ in range(draw.randint(0, 4))]
    members = [member for member in dict(members).items() if member[0] != "metadata"]
    members.insert(draw.randint(0, len(members)), ("metadata", metadata))
    return dict(members)


def test_nothing_misleads_the_stamp(monkeypatch):
    """For any events, the broker's members are inserted into their metadata, and nowhere else. (P100, P105)"""
    by_grammar, put = [], records._put_at_beginning
    monkeypatch.setattr(records, "_put_at_beginning", lambda *args: by_grammar.append(1) or put(*args))
    put_count = 0
    for seed in range(choose_by_suite(400, 20_000)):
        draw = random.Random(seed)
        schemas = RandomSchemas(draw)
        events = [a_hostile_event(draw, schemas) for _ in range(draw.randint(1, 4))]
        escapes = draw.choice(SPELLINGS)._replace(blanks="")
        texts = [spell(draw, event, escapes) for event in events]
        piece = parse_piece(f"[{','.join(texts)}]".encode())
        partitions = [draw.randrange(2) for _ in events]
        stamps = Stamps(a_business_type(name="t"), ORIGIN)
        made = RecordMaker(partitions=partitions, stamps=stamps).make_records(piece)
        stored = {partition: iter(each) for partition, each in made.items()}
        for text, partition in zip(texts, partitions, strict=True):
            members, sent = spelled_members(text)
            found_members, found = spelled_members(next(stored[partition]).value.decode())
            assert found_members == members, seed
            assert found == STAMP | {"flow_id": "f", "partition": str(partition)} | sent, seed
            put_count += 1
    assert put_count / 10 < len(by_grammar) < put_count * 9 / 10  # both ways are taken often
