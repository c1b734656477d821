"""The registry in DynamoDB: failing calls, and the number of calls."""

import json
import random
import string

import pytest
from pynamodb.expressions.operand import Path

from nakadi.app.engines import open_registry
from nakadi.engines.common.documents import CHANGE_COUNTS_KIND
from nakadi.engines.dynamodb.client import CONFLICT_RETRY_PAUSES_SECONDS, RETRY_PAUSES_SECONDS, CallRetryPolicy
from nakadi.engines.dynamodb.registry import DocumentItem, DynamoDbRegistry
from nakadi.engines.dynamodb.table_address import TableAddress, connect
from nakadi.engines.dynamodb.tables import DOCUMENTS_TABLE
from nakadi.model.outcomes import BadSetting, Invalid, Unavailable
from nakadi.ports.registry import (
    ABSENT_REVISION,
    CHANGE_BUCKETS,
    ChangeCounters,
    ChangedMeanwhile,
    CheckRevision,
    Document,
    PutDocument,
    RemoveDocument,
)
from tests.support.aws import (
    PASSING_FAULTS,
    REGION,
    cancellation_fault,
    no_connection,
    refusal_fault,
    small_page_fault,
    timeout_before_effect,
    timeout_fault_with,
)

KIND = "thing"
ATTEMPTS = len(RETRY_PAUSES_SECONDS) + 1

PASSING = PASSING_FAULTS | {
    "over the account's limit": refusal_fault("RequestLimitExceeded"),
    "in progress": refusal_fault("TransactionInProgressException"),
}
LASTING = {
    "no table": refusal_fault("ResourceNotFoundException"),
    "not allowed": refusal_fault("AccessDeniedException"),
    "expired credentials": refusal_fault("ExpiredTokenException"),
    "nonsense": cancellation_fault("ValidationError"),
}

# For each kind of change: the call that makes it, the change, and the revision that the document "a" then has.
WRITES = {
    "a put": ("PutItem", [PutDocument(KIND, "a", {"n": 2}, expected_revision=1)], 2),
    "a creation": ("PutItem", [PutDocument(KIND, "b", {}, expected_revision=ABSENT_REVISION)], 1),
    "a put of whatever is there": ("TransactWriteItems", [PutDocument(KIND, "a", {"n": 2})], 2),
    "a removal": ("TransactWriteItems", [RemoveDocument(KIND, "a", expected_revision=1)], None),
    "a removal of whatever is there": ("TransactWriteItems", [RemoveDocument(KIND, "a")], None),
    "several": (
        "TransactWriteItems",
        [PutDocument(KIND, "a", {"n": 2}, 1), PutDocument(KIND, "b", {}), CheckRevision(KIND, "c", ABSENT_REVISION)],
        2,
    ),
}


# Each fault is tried with one write for each kind of call. The other writes make the same calls, so they are marked
# `long`.
FAULTED_WRITES = [
    pytest.param(
        WRITES[write],
        fault,
        id=f"{write}-{name}",
        marks=()
        if write in ("a put", "several")
        else pytest.mark.long(
            "tests/unit/engines/dynamodb/test_registry.py::TestFaultsThatPass::test_change_nothing_about_a_write",
            "tests/unit/engines/dynamodb/test_registry.py::TestFaultsThatLast::test_are_reported_after_a_few_attempts",
        ),
    )
    for write in WRITES
    for name, fault in PASSING.items()
]


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def registry(aws, pauses):
    registry = DynamoDbRegistry(TableAddress("test", REGION), CallRetryPolicy(pauses.append))
    registry.write(PutDocument(KIND, "a", {"n": 1}, expected_revision=ABSENT_REVISION))
    aws.calls.clear()
    return registry


@pytest.fixture
def other_process(registry):  # noqa: ARG001  # after it, so that the table is as it left it
    """Another process with the same tables."""
    return DynamoDbRegistry(TableAddress("test", REGION), CallRetryPolicy())


def revision(registry, key="a"):
    found = registry.get(KIND, key)
    return found and found.revision


class TestWritersThatMeet:
    def test_get_more_turns_than_faults_do(self, aws, registry, pauses):
        """Changes of different documents share a counter; each takes effect once, however often they collide."""
        aws.goes_wrong(
            "TransactWriteItems",
            *[cancellation_fault("TransactionConflict")] * (len(CONFLICT_RETRY_PAUSES_SECONDS) + ATTEMPTS - 1),
        )
        registry.write(PutDocument("settings", "a", {}, ABSENT_REVISION))

        assert registry.get("settings", "a").revision == 1
        assert sum(registry.change_counters().count_by_bucket.values()) == 1
        assert sum(pauses) < 3

    def test_give_up_some_day(self, aws, registry):
        """A writer that always collides reports it, and has neither changed nor counted anything."""
        aws.goes_wrong(
            "TransactWriteItems",
            *[cancellation_fault("TransactionConflict")] * (len(CONFLICT_RETRY_PAUSES_SECONDS) + ATTEMPTS),
        )
        with pytest.raises(Unavailable):
            registry.write(PutDocument("settings", "a", {}, ABSENT_REVISION))

        assert registry.get("settings", "a") is None
        assert registry.change_counters() == ChangeCounters()

    @pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
    def test_are_counted_once(self, aws, registry, fault):
        """A write that meets faults takes effect and is counted once, whether the faults come before its effect or
        after it."""
        aws.goes_wrong("TransactWriteItems", *[fault] * (ATTEMPTS - 1))
        registry.write(PutDocument("settings", "a", {}, ABSENT_REVISION))

        assert registry.get("settings", "a").revision == 1
        assert sum(registry.change_counters().count_by_bucket.values()) == 1


class TestFaultsThatPass:
    @pytest.mark.parametrize(("write", "fault"), FAULTED_WRITES)
    def test_change_nothing_about_a_write(self, aws, registry, pauses, write, fault):
        """A write that meets faults takes effect once, whether the faults come before its effect or after it."""
        operation, changes, expected = write
        aws.goes_wrong(operation, *[fault] * (ATTEMPTS - 1))

        registry.write(*changes)

        assert revision(registry, changes[0].key) == expected
        assert len(pauses) == ATTEMPTS - 1

    @pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
    def test_change_nothing_about_a_read(self, aws, registry, fault):
        """A read that meets a fault is repeated."""
        aws.goes_wrong("GetItem", fault)
        aws.goes_wrong("Query", fault)

        assert registry.get(KIND, "a") == Document("a", {"n": 1}, 1)
        assert registry.list(KIND) == [Document("a", {"n": 1}, 1)]

    def test_change_nothing_about_a_list_of_pages(self, aws, registry):
        """A page that fails is requested again; no document is left out or repeated."""
        for number in range(5):
            registry.write(*[PutDocument("many", f"{number}{n}", {}, ABSENT_REVISION) for n in range(10)])
        whole = [document.key for document in registry.list("many")]
        aws.calls.clear()
        aws.goes_wrong("Query", timeout_before_effect, refusal_fault("ThrottlingException"), *[small_page_fault(7)] * 8)

        assert [document.key for document in registry.list("many")] == whole
        assert aws.calls["Query"] == 2 + 8


class TestFaultsThatLast:
    @pytest.mark.parametrize(("write", "fault"), FAULTED_WRITES)
    def test_are_reported_after_a_few_attempts(self, aws, registry, pauses, write, fault):
        """A write that never succeeds is given up; by then, it has taken effect at most once."""
        operation, changes, expected = write
        before = revision(registry, changes[0].key)
        aws.goes_wrong(operation, *[fault] * ATTEMPTS)

        with pytest.raises(Unavailable):
            registry.write(*changes)

        assert aws.calls[operation] == ATTEMPTS
        assert all(pause <= longest for pause, longest in zip(pauses, RETRY_PAUSES_SECONDS, strict=True))
        assert revision(registry, changes[0].key) in (before, expected)

    @pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
    def test_that_nothing_will_mend_are_reported_at_once(self, aws, registry, pauses, fault):
        """The registry does not repeat a call whose failure is final."""
        for operation, attempt in {
            "GetItem": lambda: registry.get(KIND, "a"),
            "Query": lambda: registry.list(KIND),
            "PutItem": lambda: registry.write(PutDocument(KIND, "a", {}, 1)),
            "TransactWriteItems": lambda: registry.write(PutDocument(KIND, "a", {}), PutDocument(KIND, "b", {})),
        }.items():
            aws.goes_wrong(operation, fault)
            with pytest.raises(Unavailable):
                attempt()
        assert pauses == []

    @pytest.mark.usefixtures("aws")
    def test_are_bounded_in_time(self):
        """A call to a service that does not answer ends well before API Gateway's limit of half a minute."""
        config = connect(TableAddress("test", REGION).bind_model(DocumentItem, DOCUMENTS_TABLE)).client.meta.config
        longest = config.connect_timeout + config.read_timeout

        assert config.retries["total_max_attempts"] == 1
        assert ATTEMPTS * longest + sum(RETRY_PAUSES_SECONDS) < 15


class TestDoubt:
    def test_is_reported_when_another_wrote_as_well(self, aws, registry, other_process):
        """If it is unknown whether a write took effect before another's, the engine does not claim that it failed."""
        aws.goes_wrong(
            "PutItem", timeout_fault_with(lambda: other_process.write(PutDocument(KIND, "a", {"by": "other"}, 2)))
        )

        with pytest.raises(Unavailable):
            registry.write(PutDocument(KIND, "a", {"by": "me"}, 1))

        assert registry.get(KIND, "a") == Document("a", {"by": "other"}, 3)

    def test_is_reported_when_another_removed_it(self, aws, registry, other_process):
        """A document that may have been written, but no longer exists, does not count as never written."""
        aws.goes_wrong("PutItem", timeout_fault_with(lambda: other_process.write(RemoveDocument(KIND, "b"))))

        with pytest.raises(Unavailable):
            registry.write(PutDocument(KIND, "b", {}, 1))

    def test_does_not_arise_after_a_refusal(self, aws, registry):
        """A write that was refused before it began, and then finds another revision, is a genuine conflict."""
        aws.goes_wrong("PutItem", refusal_fault("ThrottlingException"), no_connection)

        with pytest.raises(ChangedMeanwhile):
            registry.write(PutDocument(KIND, "a", {}, 7))

    def test_does_not_arise_in_a_transaction(self, aws, registry, other_process):
        """A completed transaction is not repeated, whatever has happened to its documents since."""
        aws.goes_wrong(
            "TransactWriteItems",
            timeout_fault_with(lambda: other_process.write(PutDocument(KIND, "b", {"by": "other"}, 1))),
        )

        registry.write(PutDocument(KIND, "a", {}, 1), PutDocument(KIND, "b", {"by": "me"}, ABSENT_REVISION))

        assert registry.get(KIND, "b") == Document("b", {"by": "other"}, 2)
        assert revision(registry) == 2


class TestCalls:
    def test_are_one_for_each_question(self, aws, registry):
        """Every query is one call, and reads are strongly consistent; no call scans a table."""
        registry.get(KIND, "a")
        registry.list(KIND, prefix="a", limit=10)
        registry.write(PutDocument(KIND, "a", {}, 1))
        registry.write(PutDocument(KIND, "a", {}, 2), PutDocument(KIND, "b", {}))
        registry.write()

        assert aws.calls == {"GetItem": 1, "Query": 1, "PutItem": 1, "TransactWriteItems": 1}

    def test_a_change_of_a_cached_document_is_one_call(self, aws, registry):
        """A change is counted in the same call that makes it, and one call reads the change numbers."""
        registry.write(PutDocument("settings", "a", {}, ABSENT_REVISION))
        registry.write(PutDocument("event-types", "a", {}, ABSENT_REVISION))
        registry.change_counters()

        assert aws.calls == {"GetItem": 1, "PutItem": 1, "TransactWriteItems": 1}

    def test_reading_the_change_numbers_always_costs_one_unit(self, registry):
        """The change numbers of all buckets fit into the 4 KB of a read unit, even after a century of changes."""
        items = TableAddress("test", REGION).bind_model(DocumentItem, DOCUMENTS_TABLE)
        items(CHANGE_COUNTS_KIND, CHANGE_COUNTS_KIND).update(
            [Path(f"n{bucket}").set(3 * 10**9) for bucket in range(CHANGE_BUCKETS)]
        )
        found = connect(items).get_item(items.Meta.table_name, CHANGE_COUNTS_KIND, CHANGE_COUNTS_KIND)["Item"]

        assert len(registry.change_counters().count_by_bucket) == CHANGE_BUCKETS
        # DynamoDB takes at most 21 bytes for a number; an attribute's name takes as many bytes as it has letters.
        assert sum(len(name) + (21 if "N" in value else len(value["S"])) for name, value in found.items()) < 4096

    def test_are_not_made_for_what_cannot_be_there(self, aws, registry):
        """For a key that no item can have, there is no document; a prefix that no key can have lists nothing."""
        assert registry.get(KIND, "k" * 1025) is None
        assert registry.get(KIND, "") is None
        assert registry.list(KIND, prefix="a", after="b") == []
        assert aws.calls == {}


class TestLargeDocuments:
    def test_are_kept_packed(self, registry):
        """A schema of the maximum length fits, and is read unchanged, even if it replaces a small schema or a small one
        replaces it."""
        small, large = {"text": "x"}, {"text": '{"type": "string"}\n' * 13_000}
        for body in (large, small, large):
            registry.write(PutDocument(KIND, "a", body))
            assert registry.get(KIND, "a").body == body
            registry.write(PutDocument(KIND, "a", body, registry.get(KIND, "a").revision))
            assert registry.list(KIND)[0].body == body

    @pytest.mark.parametrize("expected", [None, 1])
    def test_that_do_not_fit_are_refused(self, aws, registry, expected):
        """A document that is too large for an item is refused with a message for the client, without a call to the
        table."""
        body = {"text": "".join(random.Random(1).choices(string.printable + "äöüéß", k=600_000))}

        with pytest.raises(Invalid, match="too large"):
            registry.write(PutDocument(KIND, "a", body, expected))
        with pytest.raises(Invalid, match="so long a name"):
            registry.write(PutDocument(KIND, "k" * 1025, {}))

        assert aws.calls == {}


class TestUrl:
    def test_names_prefix_region_and_endpoint(self, aws):
        """The URL names the tables' prefix, the region, and the endpoint if it is not AWS."""
        asked = []

        def record_request(request, effect):
            asked.append(
                (request.url, request.headers["Authorization"].decode(), json.loads(request.body)["TableName"])
            )
            return refusal_fault("AccessDeniedException")(request, effect)

        near = open_registry("dynamodb://near?region=eu-west-1&endpoint=http://localhost:8000")
        aws.goes_wrong("GetItem", record_request)
        with pytest.raises(Unavailable):
            near.get(KIND, "a")
        [(url, signature, table)] = asked
        assert url == "http://localhost:8000/"
        assert "/eu-west-1/dynamodb/" in signature
        assert table == DOCUMENTS_TABLE.full_name("near")

        here = open_registry(f"dynamodb://test?region={REGION}")
        here.write(PutDocument(KIND, "a", {}))
        assert here.get(KIND, "a") == Document("a", {}, 1)

    def test_a_url_without_a_prefix_is_refused(self):
        """A URL that does not name tables is reported at the start."""
        with pytest.raises(BadSetting, match="dynamodb://prefix"):
            open_registry("dynamodb://")
