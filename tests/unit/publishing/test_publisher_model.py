"""For any schema, events and bytes, the result of a batch equals that of a slow and simple model."""

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from nakadi.model.authorization import UNAUTHENTICATED, Feature
from nakadi.model.event_type import (
    Category,
    CleanupPolicy,
    CompatibilityMode,
    OwnerSelector,
    OwnerSelectorType,
    PartitionStrategy,
)
from nakadi.model.outcomes import Invalid, Malformed
from nakadi.publishing import batch as batches
from nakadi.publishing import memory, validation
from nakadi.publishing.batch import BatchStatus
from tests.support.everything import WANTED, choose_by_suite
from tests.support.publishing import ANN, EID, PublisherInMemory, a_business_type
from tests.support.publishing_model import MALFORMED, ModelOutcome, ModelRecord, PublishingModel, spelled_members
from tests.support.random_events import (
    HOSTILE_CHANGES,
    NAMES,
    SPELLINGS,
    TEXTS,
    USUAL_NAMES,
    RandomSchemas,
    SpelledNumber,
    spell,
)

SEED = 20261126
SCHEMAS = 30  # in most runs; `make test-all` has forty times as many
BATCHES_PER_SCHEMA = 6
MAX_EVENT_BYTES = 2000
PARTITIONS = 12
MOMENTS = ("2026-11-21T12:00:00Z", "2026-11-21T12:00:00.123+01:00", "2024-02-29T12:00:00Z")
KEYS = ("a", "b", "n", "data", "note", "a.b", "metadata", "x", "é")
ATTEMPTS_AT_A_VALID_EVENT = 6


class RandomEventType:
    """An event type with a random schema and category, its model, and batches for it."""

    def __init__(self, draw):
        self.draw = draw
        self.schemas = RandomSchemas(draw, draw.choice((USUAL_NAMES, NAMES)))
        self.root = self.schemas.root()
        self.category = draw.choice((Category.BUSINESS, Category.BUSINESS, Category.DATA, Category.UNDEFINED))
        strategies = [PartitionStrategy.RANDOM, PartitionStrategy.HASH, PartitionStrategy.HASH]
        policies = [CleanupPolicy.DELETE]
        if self.category is not Category.UNDEFINED:
            strategies.append(PartitionStrategy.USER_DEFINED)
            policies.append(CleanupPolicy.COMPACT)
        self.strategy = draw.choice(strategies)
        self.policy = draw.choice(policies)
        self.selector = self._selector()
        known = [name for name in self.root.schema.get("properties", {}) if name and not set(name) & set(".\\'")]
        changes = {"enrichment_strategies": ()} if self.category is Category.UNDEFINED or draw.random() < 0.1 else {}
        self.event_type = a_business_type(
            schema=self.root.schema,
            category=self.category,
            partition_strategy=self.strategy,
            partition_key_fields=tuple(draw.choice((*known, *known, *KEYS)) for _ in range(draw.choice((1, 1, 1, 2)))),
            cleanup_policy=self.policy,
            compatibility_mode=draw.choice(
                (CompatibilityMode.NONE, CompatibilityMode.NONE, CompatibilityMode.COMPATIBLE)
            ),
            event_owner_selector=self.selector,
            partitions=draw.choice((1, PARTITIONS)),
            **changes,
        )
        self.model = PublishingModel(self.event_type, MAX_EVENT_BYTES, owners=True)
        self.house = PublisherInMemory()
        self.house.features.switch(Feature.EVENT_OWNER_SELECTOR_AUTHZ, on=True)
        self.house.publisher = replace(
            self.house.publisher, limits=replace(self.house.publisher.limits, max_event_bytes=MAX_EVENT_BYTES)
        )
        self.house.add(self.event_type)

    def _selector(self):
        if self.draw.random() < 0.7:
            return None
        if self.draw.random() < 0.3:
            return OwnerSelector(type=OwnerSelectorType.STATIC, name="user", value="ann")
        return OwnerSelector(type=OwnerSelectorType.PATH, name="user", value=self.draw.choice(KEYS))

    def batch(self):
        """A body, and whether it is malicious."""
        spelling = self.draw.choice(SPELLINGS)
        common = {"flow_id": "mine"} if self.draw.random() < 0.1 else {}
        number = self.draw.choice((0, 1, 2, 3, 5, 8))
        events = [self._event(common, faulty=self.draw.random() < 0.02) for _ in range(number)]
        text = spell(self.draw, events, spelling)
        is_hostile = self.draw.random() < 0.25
        for _ in range(self.draw.randint(1, 2) if is_hostile else 0):
            text = self.draw.choice(HOSTILE_CHANGES)(self.draw, text)
        body = text.encode("utf-8", "surrogatepass")
        if is_hostile and self.draw.random() < 0.05:
            body += self.draw.choice((b"\xff", b"\xed\xa0\x80", b"\x00", b"\n"))
        return body, is_hostile

    def _event(self, common, *, faulty):
        """An event that matches the schema, if a few attempts find one."""
        for _ in range(ATTEMPTS_AT_A_VALID_EVENT):
            event = self._with_metadata(self.root.make(), common)
            text = f"[{spell(self.draw, event, SPELLINGS[0])}]".encode()
            if faulty or self.model.publish(text, ANN, "f", None, [0.0]).verdict == "stored":
                break
        if faulty and self.draw.random() < 0.5:
            event[self.draw.choice(NAMES)] = self.schemas.anything(2)
        return event

    def _with_metadata(self, members, common):
        if self.category is Category.UNDEFINED:
            return members
        metadata = {"eid": EID, "occurred_at": self.draw.choice(MOMENTS), **common}
        if self.strategy is PartitionStrategy.USER_DEFINED or self.draw.random() < 0.01:
            metadata["partition"] = str(self.draw.randrange(self.event_type.timeline.partitions))
        if self.policy.compacts:
            metadata["partition_compaction_key"] = self.draw.choice(TEXTS) or "key"
        if self.draw.random() < 0.03:
            metadata["event_type"] = self.event_type.name
        if self.draw.random() < 0.03:
            metadata["flow_id"] = self.draw.choice(("", "yours", '"é'))
        if self.draw.random() < 0.03:
            metadata["span_ctx"] = {self.draw.choice(NAMES): self.draw.choice(TEXTS)}
        if self.draw.random() < 0.03:
            metadata["parent_eids"] = [EID]
        if self.draw.random() < 0.01:
            metadata[self.draw.choice(("eid", "occurred_at", "version", "x"))] = self.draw.choice(
                ("", "x", None, SpelledNumber("1"))
            )
        members = list(members.items())
        self.draw.shuffle(members)
        if self.category is Category.DATA:
            event = [("data_type", "t"), ("data_op", "C"), ("data", dict(members)), ("metadata", metadata)]
            self.draw.shuffle(event)
            return dict(event)
        members = [(name, value) for name, value in members if name != "metadata"]
        members.insert(self.draw.randint(0, len(members)), ("metadata", metadata))
        return dict(members)

    def publish(self, body, subject, directed_to, draws, monkeypatch):
        """The outcome in the model's terms, and whether all events were known to be valid at once."""
        self.house.log.appends.clear()
        self.house.draws[:] = draws
        find_problem, one_by_one = validation._find_problem, []
        with monkeypatch.context() as patch:
            patch.setattr(validation, "_find_problem", lambda *said: one_by_one.append(1) or find_problem(*said))
            try:
                outcome = self.house.publish(self.event_type, body, subject, directed_to=directed_to)
            except Malformed as refusal:
                return ModelOutcome("malformed" if refusal.detail.startswith(MALFORMED) else "?"), not one_by_one
        items = [(i.publishing_status.value, i.step.value, i.detail, i.eid, i.partition) for i in outcome.items]
        verdict = "stored" if outcome.status is BatchStatus.STORED else "rejected"
        stored = {
            partition: [
                ModelRecord(*spelled_members(each.value.decode()), each.key, each.owner, each.directed_to)
                for each in records
            ]
            for _, batches in self.house.log.appends
            for partition, records in batches.items()
        }
        return ModelOutcome(verdict, tuple(items), stored), not one_by_one


def run_scenario(draw, ways, monkeypatch, *, in_pieces=False):
    try:
        scenario = RandomEventType(draw)
    except Invalid:  # a schema may have too many references
        ways["not a schema"] += 1
        return
    for _ in range(BATCHES_PER_SCHEMA):
        body, is_hostile = scenario.batch()
        subject = draw.choice((ANN, ANN, ANN, UNAUTHENTICATED))
        directed_to = "a-subscription" if draw.random() < 0.1 else None
        # Some pieces may have been drawn before one of them is declined.
        draws = [draw.random()] * 10 if in_pieces else [draw.random() for _ in range(10)]
        expected = scenario.model.publish(body, subject, "the-flow", directed_to, list(draws))
        found, is_known = scenario.publish(body, subject, directed_to, draws, monkeypatch)
        assert found == expected, (scenario.event_type, body)
        ways[expected.verdict] += 1
        if expected.stored and not is_hostile:
            ways["meant to be known at once"] += 1
            ways["known at once"] += is_known
            ways["known at once with several events"] += is_known and sum(map(len, expected.stored.values())) > 1


@pytest.mark.parametrize("in_pieces", [False, True])
def test_publishing_does_what_the_model_says(monkeypatch, in_pieces):
    """The verdict, the reasons, stored events, partitions, keys and owners match the model, however a batch is read.

    Short bodies are read at once, and long ones in pieces. (P19, P71, P105)
    """
    seed = random.SystemRandom().randrange(10**12) if WANTED else SEED
    print(f"seed {seed}")
    if in_pieces:
        for module in (memory, validation):
            monkeypatch.setattr(module, "SHORT_BODY_BYTES", 0)
        for module in (memory, validation, batches):
            monkeypatch.setattr(module, "MAX_BATCH_PIECE_BYTES", 400)
    ways = Counter()
    for number in range(seed, seed + choose_by_suite(SCHEMAS, 40 * SCHEMAS)):
        try:
            run_scenario(random.Random(number), ways, monkeypatch, in_pieces=in_pieces)
        except BaseException:
            print(f"in the scenario of seed {number}")
            raise
    total = sum(ways[verdict] for verdict in ("stored", "rejected", "malformed"))
    assert min(ways["stored"], ways["rejected"], ways["malformed"]) > total / 20, ways
    assert ways["known at once"] > 0.8 * ways["meant to be known at once"], ways
    assert ways["known at once with several events"] > ways["meant to be known at once"] / 4, ways
    print(ways)
