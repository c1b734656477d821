"""Whether a batch is read at once or in pieces, its outcome and its stored events are the same, to the byte."""

import json
import random
from collections import Counter

import pytest

from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.model.event_type import Category, CleanupPolicy, PartitionStrategy
from nakadi.model.outcomes import Malformed
from nakadi.publishing import batch as batches
from nakadi.publishing import memory, validation
from nakadi.publishing.batch import BatchStatus
from tests.support.publishing import EID, PublisherInMemory, a_business_type

SEED = 20261124
CASES = 300
PARTITIONS = 12
RECEIVED_AT = "2026-11-21T12:00:00.000Z"  # the clock of a publisher in these tests does not move
SCHEMA = {
    "type": "object",
    "required": ["n"],
    "properties": {
        "n": {"type": "integer", "minimum": 0},
        "note": {"type": "string"},
        "inner": {
            "type": "object",
            "properties": {"metadata": {"type": "object", "properties": {"a": {"type": "string"}}}},
        },
        "x": {"type": "number"},
        "text": {"type": "string"},
    },
}
HASH = {"partition_strategy": PartitionStrategy.HASH, "partition_key_fields": ("note",)}
KINDS = {
    "random": {},
    "hash": HASH,
    "keys": {**HASH, "partition_key_fields": ("note", "n")},
    "plain": {**HASH, "enrichment_strategies": ()},
    "data": {**HASH, "category": Category.DATA},
    "wanted": {"partition_strategy": PartitionStrategy.USER_DEFINED},
    "compacted": {**HASH, "cleanup_policy": CleanupPolicy.COMPACT},
}
WEIGHTS = (3, 4, 4, 4, 4, 1, 1)
NOTES = ("", "a", "é", "\u2028", "\U0001f600 b", "</", '":{', "x" * 200, '"metadata":{', "metadata", 'q"\\')
NUMBERS = ("0", "7", "1.50", "1E2", "9223372036854775807")
TEXTS = ('"\u2028"', '"\\u00e9"', '"\\/"', '"\\u2028"')
FAULTS = ('"n":1', '"n":-1', '"x":1e400', '"x":18446744073709551615', '"x":null', '"note":5', '"x":' + "9" * 400)


def java_hash(text):
    """The hash of a string as Java computes it, from its UTF-16 units."""
    units, total = text.encode("utf-16-be"), 0
    for at in range(0, len(units), 2):
        total = (31 * total + int.from_bytes(units[at : at + 2])) % 2**32
    return total


def partition_by_hash(keys):
    total = sum(map(java_hash, keys)) % 2**32
    number = abs(total - 2**32 if total >= 2**31 else total) % PARTITIONS
    return int(sorted(map(str, range(PARTITIONS)))[number])


def object_of(members):
    return f"{{{','.join(members)}}}"


class BatchSetup:
    """A batch, and the expected records: the partition, key and text of each event, derived from the contract alone."""

    def __init__(self, draw):
        [self.name] = draw.choices(list(KINDS), WEIGHTS)
        # Most metadata of an event is that of all events; members that only some events set are rare.
        self.alike = [
            said
            for said in (
                f'"event_type":"{self.name}"',
                '"flow_id":"mine"',
                '"flow_id":""',
                '"span_ctx":{"é":"\\u00e9"}',
            )
            if draw.random() < 0.15
        ]
        self.alike = self.alike if sum("flow_id" in said for said in self.alike) < 2 else []
        self.is_faulty = draw.random() < 0.1
        self.blank = draw.choice(("", "", " ", "\n\t"))
        self.draws, self.events, self.stored = [], [], []
        for number in range(draw.randint(1, 6)):
            self._add(draw, self.is_faulty and number == 0)

    @property
    def body(self):
        return f"[{self.blank}{(self.blank + ',').join(self.events)}{self.blank}]".encode()

    def _add(self, draw, is_faulty):
        number, note = str(draw.randint(0, 2**53)), draw.choice(NOTES)
        spelled = json.dumps(note, ensure_ascii=draw.random() < 0.2)
        members = [f'"n":{number}', f'"note":{spelled}']
        if draw.random() < 0.3:
            members.append(f'"x":{draw.choice(NUMBERS)}')
        if draw.random() < 0.3:
            members.append(f'"text":{draw.choice(TEXTS)}')
        if draw.random() < 0.1:
            members.append('"inner":{"metadata":{"a":"b"}}')
        if is_faulty:
            fault = draw.choice(FAULTS)
            members = [each for each in members if fault == '"n":1' or each[:4] != fault[:4]] + [fault]
        draw.shuffle(members)
        partition, key, own = self._partition(draw, note, number)
        about = [f'"eid":"{EID}"', '"occurred_at":"2026-11-21T12:00:00Z"', *self.alike, *own]
        draw.shuffle(about)
        if self.name == "data":
            members = ['"data_type":"t"', '"data_op":"C"', f'"data":{object_of(members)}']
        at = draw.randint(0, len(members))
        before, after = members[:at], members[at:]
        self.events.append(self._text(before, about, after))
        stamped = about if self.name == "plain" else self._stamped(about, partition)
        self.stored.append((partition, key, self._text(before, stamped, after)))

    @staticmethod
    def _text(before, about, after):
        return object_of([*before, f'"metadata":{object_of(about)}', *after])

    def _partition(self, draw, note, number):
        match self.name:
            case "random":
                self.draws.append(draw.random())
                return int(self.draws[-1] * PARTITIONS), None, []
            case "wanted":
                wanted = draw.randrange(PARTITIONS)
                return wanted, None, [f'"partition":"{wanted}"']
            case "compacted":
                return partition_by_hash([note]), "key", ['"partition_compaction_key":"key"']
            case "keys":
                return partition_by_hash([note, number]), f"{note},{number}", []
            case _:
                return partition_by_hash([note]), note, []

    def _stamped(self, about, partition):
        """The broker's members come first; the client's own values keep their positions, unless the broker overrides
        them.
        """
        stamp = {
            "published_by": "unauthenticated",
            "received_at": RECEIVED_AT,
            "event_type": self.name,
            "version": "1.0.0",
            "flow_id": "the-flow",
            "partition": str(partition),
        }
        kept = [each for each in about if each != '"flow_id":""']
        if len(kept) < len(about):  # the broker then writes all of the metadata, with the shortest escapes
            kept = [each.replace("\\u00e9", "é") for each in kept]
        said = [each.split('"')[1] for each in kept]
        return [*(f'"{name}":"{value}"' for name, value in stamp.items() if name not in said), *kept]


def a_house():
    house = PublisherInMemory()
    for name, changes in KINDS.items():
        house.add(a_business_type(name=name, **{"schema": SCHEMA, "partitions": PARTITIONS} | changes))
    return house


def publish(house, setup, monkeypatch, *, in_pieces):
    """The outcome of the batch, and whether its events were known to be valid as a whole."""
    house.log.appends.clear()
    house.draws[:] = setup.draws
    find_problem, one_by_one = validation._find_problem, []
    with monkeypatch.context() as patch:
        patch.setattr(validation, "_find_problem", lambda *said: one_by_one.append(1) or find_problem(*said))
        if in_pieces:
            for module in (memory, validation):
                patch.setattr(module, "SHORT_BODY_BYTES", 0)
            for module in (batches, memory, validation):
                patch.setattr(module, "MAX_BATCH_PIECE_BYTES", 300)
        try:
            outcome = house.publisher.publish(setup.name, setup.body, UNAUTHENTICATED, "the-flow")
        except Malformed as refusal:
            outcome = refusal.detail
    stored = {
        partition: [(each.key, each.value.decode()) for each in records]
        for _, batches in house.log.appends
        for partition, records in batches.items()
    }
    return outcome, stored, not one_by_one


def test_what_is_stored_does_not_depend_on_the_way(monkeypatch):
    """Random batches are stored as the contract says, at once and in pieces, and most of them are checked at once.
    (P105)"""
    print(f"seed {SEED}")
    draw, ways = random.Random(SEED), Counter()
    house, other_house = a_house(), a_house()
    for _ in range(CASES):
        setup = BatchSetup(draw)
        outcome, stored, is_quick = publish(house, setup, monkeypatch, in_pieces=False)
        ways["quick" if is_quick else "slow"] += 1
        ways["quick with several events"] += is_quick and len(setup.events) > 1
        assert publish(other_house, setup, monkeypatch, in_pieces=True)[:2] == (outcome, stored), setup.body
        if setup.is_faulty:
            assert not stored, setup.body
            continue
        assert getattr(outcome, "status", outcome) is BatchStatus.STORED, setup.body
        expected = {}
        for partition, key, text in setup.stored:
            expected.setdefault(partition, []).append((key, text))
        assert stored == expected, setup.body
    assert ways["quick"] > CASES / 2, ways
    assert ways["quick with several events"] > CASES / 3, ways


@pytest.mark.parametrize("size", [999_000, 999_001])
def test_an_event_above_the_limit_is_stored_by_no_way(size):
    """An event of exactly the size limit is stored, and an event that is a byte longer is not. (P37)"""
    house = a_house()
    head = f'{{"metadata":{{"eid":"{EID}","occurred_at":"2026-11-21T12:00:00Z"}},"n":1,"note":"'
    event = head + "x" * (size - len(head) - 2) + '"}'
    outcome = house.publish(house.event_types.get("random"), f"[{event}]".encode())
    assert (outcome.status is BatchStatus.STORED) == (size <= 999_000)
