"""The promises of every registry: the sentences of `nakadi.ports.registry.Registry`, one by one."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from nakadi.ports.registry import (
    ABSENT_REVISION,
    CACHED_KINDS,
    ChangeCounters,
    ChangedMeanwhile,
    CheckRevision,
    Document,
    PutDocument,
    Registry,
    RemoveDocument,
    change_bucket,
)
from tests.support.closed import assert_everything_is_refused
from tests.support.engines import REGISTRIES, a_registry
from tests.support.patience import run_in_threads

KIND = "thing"
REMEMBERED_KIND = "event-types"


@pytest.fixture(params=REGISTRIES)
def registry(request, tmp_path):
    with a_registry(REGISTRIES[request.param], tmp_path) as opened:
        yield opened


class TestDocuments:
    def test_are_kept_as_they_were_written(self, registry: Registry):
        """A document's body is read as it was written, with every kind of JSON value."""
        body = {"text": 'é "\n\u0000', "number": 1.5, "large": 2**63 - 1, "list": [1, None, True], "object": {"a": {}}}
        registry.write(PutDocument(KIND, "a", body))
        assert registry.get(KIND, "a") == Document("a", body, 1)

    def test_that_are_not_there_are_none(self, registry: Registry):
        """Reading a document that was never written, or that is of another kind, returns nothing."""
        registry.write(PutDocument("other", "a", {}))
        assert registry.get(KIND, "a") is None

    def test_count_their_writes(self, registry: Registry):
        """A document's revision is 1 when it is created, and grows by one with every write."""
        for revision in range(1, 4):
            registry.write(PutDocument(KIND, "a", {"revision": revision}))
            assert registry.get(KIND, "a") == Document("a", {"revision": revision}, revision)

    def test_begin_anew_after_they_were_removed(self, registry: Registry):
        """A removed document no longer exists, and a later one with the same key begins at revision 1."""
        registry.write(PutDocument(KIND, "a", {}))
        registry.write(PutDocument(KIND, "a", {}))
        registry.write(RemoveDocument(KIND, "a"))
        assert registry.get(KIND, "a") is None
        assert registry.list(KIND) == []
        registry.write(PutDocument(KIND, "a", {}, expected_revision=ABSENT_REVISION))
        assert registry.get(KIND, "a") == Document("a", {}, 1)

    def test_cannot_be_changed_by_any_client_that_holds_them(self, registry: Registry):
        """If a caller changes a body that it has written or read, the stored document stays the same."""
        body = {"list": [1]}
        registry.write(PutDocument(KIND, "a", body))
        body["list"].append(2)
        registry.get(KIND, "a").body["list"].append(3)
        registry.list(KIND)[0].body["list"].append(4)
        assert registry.get(KIND, "a").body == {"list": [1]}


class TestList:
    KEYS = (
        "A",
        "a",
        "a.",
        "a.b",
        "a.b.c",
        "a/",
        "ab",
        "b",
        "\ud7ff",
        "\ue000",
        "é",
        "\uffff",
        "\U0001f600",
        "\U0010ffff",
    )

    @pytest.fixture
    def filled_registry(self, registry: Registry):
        registry.write(*[PutDocument(KIND, key, {"key": key}) for key in reversed(self.KEYS)])
        registry.write(PutDocument("thin", "a", {}), PutDocument("thing.", "a", {}))
        return registry

    def test_is_in_the_order_of_code_points(self, filled_registry: Registry):
        """All documents of a kind are listed in the order of their keys, compared by code points."""
        assert [document.key for document in filled_registry.list(KIND)] == sorted(self.KEYS)
        assert all(
            document == Document(document.key, {"key": document.key}, 1) for document in filled_registry.list(KIND)
        )

    def test_finds_what_begins_so_and_comes_after(self, filled_registry: Registry):
        """A list contains the keys that begin with `prefix` and are greater than `after`, up to the limit."""
        prefixes = ("", "a", "a.", "a.b", "b", "c", "\ud7ff", "\U0010ffff", "\U0010ffff\U0010ffff")
        for prefix, after in product(prefixes, ("", "A", "a.", "a.b.c", "aa", "\U0010ffff")):
            expected = [key for key in sorted(self.KEYS) if key.startswith(prefix) and key > after]
            for limit in (None, 0, 1, 2, 100):
                found = filled_registry.list(KIND, prefix=prefix, after=after, limit=limit)
                assert [document.key for document in found] == expected[:limit], (prefix, after, limit)

    def test_the_list_of_an_unknown_kind_is_empty(self, registry: Registry):
        """A kind of which nothing was written has no documents."""
        assert list(registry.list("unheard of")) == []

    def test_a_very_long_list_is_read_page_by_page(self, registry: Registry):
        """Megabytes of documents are listed completely, and in pages that leave out none and repeat none."""
        keys = [f"key-{number:05}" for number in range(1_500)]
        for start in range(0, len(keys), 99):
            registry.write(
                *[PutDocument(KIND, key, {"text": "x" * 2_000}, ABSENT_REVISION) for key in keys[start : start + 99]]
            )
        assert [document.key for document in registry.list(KIND)] == keys
        paged: list[str] = []
        while page := registry.list(KIND, prefix="key", after=paged[-1] if paged else "", limit=700):
            paged += [document.key for document in page]
        assert paged == keys


class TestWrite:
    @pytest.mark.parametrize(
        "change",
        [
            PutDocument(KIND, "there", {}, expected_revision=ABSENT_REVISION),
            PutDocument(KIND, "there", {}, expected_revision=1),
            PutDocument(KIND, "there", {}, expected_revision=3),
            PutDocument(KIND, "absent", {}, expected_revision=1),
            RemoveDocument(KIND, "there", expected_revision=1),
            RemoveDocument(KIND, "there", expected_revision=ABSENT_REVISION),
            RemoveDocument(KIND, "absent", expected_revision=1),
            CheckRevision(KIND, "there", expected_revision=1),
            CheckRevision(KIND, "there", expected_revision=ABSENT_REVISION),
            CheckRevision(KIND, "absent", expected_revision=1),
        ],
        ids=repr,
    )
    def test_makes_no_change_when_one_condition_fails(self, registry: Registry, change):
        """A write takes effect completely or not at all, and the error names the first change whose condition does not
        hold."""
        registry.write(PutDocument(KIND, "there", {"n": 1}), PutDocument(KIND, "goes", {}))
        registry.write(PutDocument(KIND, "there", {"n": 2}))
        with pytest.raises(ChangedMeanwhile) as raised:
            registry.write(
                PutDocument(KIND, "new", {}),
                RemoveDocument(KIND, "goes"),
                change,
                PutDocument(KIND, "last", {}),
                CheckRevision(KIND, "later", 7),
            )
        assert raised.value.change == change
        assert [(each.key, each.revision) for each in registry.list(KIND)] == [("goes", 1), ("there", 2)]

    def test_makes_all_changes_when_every_condition_holds(self, registry: Registry):
        """Puts, removals and checks of one write take effect together."""
        registry.write(PutDocument(KIND, "a", {}), PutDocument(KIND, "b", {}), PutDocument("other", "c", {}))
        registry.write(
            PutDocument(KIND, "a", {"new": True}, expected_revision=1),
            RemoveDocument(KIND, "b", expected_revision=1),
            CheckRevision("other", "c", expected_revision=1),
            CheckRevision("other", "d", expected_revision=ABSENT_REVISION),
            PutDocument(KIND, "e", {}, expected_revision=ABSENT_REVISION),
            RemoveDocument(KIND, "f", expected_revision=ABSENT_REVISION),
        )
        assert registry.list(KIND) == [Document("a", {"new": True}, 2), Document("e", {}, 1)]
        assert registry.get("other", "c") == Document("c", {}, 1)

    def test_a_write_without_conditions_always_succeeds(self, registry: Registry):
        """Without an expected revision, a put and a removal always take effect."""
        registry.write(RemoveDocument(KIND, "a"))
        registry.write(PutDocument(KIND, "a", {"n": 1}))
        registry.write(PutDocument(KIND, "a", {"n": 2}))
        assert registry.get(KIND, "a") == Document("a", {"n": 2}, 2)

    def test_an_empty_write_changes_nothing(self, registry: Registry):
        """A write without changes succeeds."""
        registry.write()

    def test_refuses_what_no_engine_could_do(self, registry: Registry):
        """More than 99 changes, or two of one document, are an error of the caller, and change nothing."""
        with pytest.raises(ValueError, match="99"):
            registry.write(*[PutDocument(REMEMBERED_KIND, f"{number}", {}) for number in range(100)])
        with pytest.raises(ValueError, match="two changes"):
            registry.write(PutDocument(KIND, "a", {}), CheckRevision(KIND, "a", ABSENT_REVISION))
        assert registry.list(KIND) == registry.list(REMEMBERED_KIND) == []
        registry.write(*[PutDocument(REMEMBERED_KIND, f"{number}", {}) for number in range(99)])

    def test_loses_no_update(self, registry: Registry):
        """If many processes increment a number in a document with conditional writes, no increment is lost."""
        registry.write(PutDocument(KIND, "counter", {"count": 0}))

        def count_up(_: int) -> None:
            for _ in range(10):
                while True:
                    found = registry.get(KIND, "counter")
                    try:
                        registry.write(PutDocument(KIND, "counter", {"count": found.body["count"] + 1}, found.revision))
                        break
                    except ChangedMeanwhile:
                        continue

        run_in_threads(count_up, 8)
        assert registry.get(KIND, "counter") == Document("counter", {"count": 80}, 81)

    def test_creates_a_key_once(self, registry: Registry):
        """If many writers create the same key at the same time, exactly one succeeds, and its body is stored."""

        def create(writer: int) -> list[str]:
            mine = []
            for number in range(20):
                try:
                    registry.write(PutDocument(KIND, f"{number}", {"by": writer}, expected_revision=ABSENT_REVISION))
                    mine.append(f"{number}")
                except ChangedMeanwhile:
                    continue
            return mine

        created = run_in_threads(create, 8)
        assert sorted(key for mine in created for key in mine) == sorted(f"{number}" for number in range(20))
        assert {each.key: each.body["by"] for each in registry.list(KIND)} == {
            key: writer for writer, mine in enumerate(created) for key in mine
        }

    def test_shows_itself_whole_or_not_at_all(self, registry: Registry):
        """If two documents are changed together, a reader that finds one of them changed then finds the other changed,
        too."""
        registry.write(PutDocument(KIND, "a", {"n": 0}), PutDocument(KIND, "b", {"n": 0}))

        def change_both(writer: int) -> None:
            for number in range(20):
                body = {"n": writer * 100 + number}
                registry.write(PutDocument(KIND, "a", body), PutDocument(KIND, "b", body))

        with ThreadPoolExecutor(1) as others:
            changing = others.submit(lambda: run_in_threads(change_both, 2))
            while not changing.done():
                for first, second in ("ab", "ba"):
                    found = registry.get(KIND, first)
                    assert registry.get(KIND, second).revision >= found.revision
            changing.result()
        first, second = registry.list(KIND)
        assert (first.body, first.revision) == (second.body, second.revision)

    def test_is_seen_by_every_read_that_begins_later(self, registry: Registry):
        """A read sees every write that returned before it began, in any thread."""

        def write_and_read(writer: int) -> None:
            for number in range(20):
                registry.write(PutDocument(KIND, f"{writer}", {"n": number}))
                assert registry.get(KIND, f"{writer}").body == {"n": number}
                assert {"n": number} in [each.body for each in registry.list(KIND, prefix=f"{writer}")]

        run_in_threads(write_and_read, 4)


class TestChanges:
    """The change numbers that let processes continue to use their caches."""

    @pytest.mark.parametrize("kind", sorted(CACHED_KINDS))
    @pytest.mark.parametrize(
        "change",
        [
            lambda kind: PutDocument(kind, "a", {"n": 2}, expected_revision=1),
            lambda kind: PutDocument(kind, "a", {"n": 2}),
            lambda kind: RemoveDocument(kind, "a", expected_revision=1),
            lambda kind: RemoveDocument(kind, "a"),
        ],
        ids=["put", "put of whatever is there", "removal", "removal of whatever is there"],
    )
    def test_changes_of_cached_documents_are_counted(self, registry: Registry, kind, change):
        """The change number of a document grows with each of its changes, whether alone or together with others."""
        registry.write(PutDocument(kind, "a", {}, expected_revision=ABSENT_REVISION))
        for others in ([], [CheckRevision(KIND, "b", ABSENT_REVISION), PutDocument(KIND, "c", {})]):
            before = change_count(registry, kind, "a")
            registry.write(*others, change(kind))
            assert change_count(registry, kind, "a") > before
            registry.write(RemoveDocument(kind, "a"))
            registry.write(PutDocument(kind, "a", {}, expected_revision=ABSENT_REVISION))

    def test_that_are_not_made_are_not_counted(self, registry: Registry):
        """A change whose condition fails changes no change number, and neither does a check."""
        registry.write(PutDocument(REMEMBERED_KIND, "a", {}))
        before = registry.change_counters()
        with pytest.raises(ChangedMeanwhile):
            registry.write(PutDocument(REMEMBERED_KIND, "a", {}, expected_revision=7))
        with pytest.raises(ChangedMeanwhile):
            registry.write(PutDocument(REMEMBERED_KIND, "a", {}), CheckRevision(KIND, "b", expected_revision=1))
        registry.write(CheckRevision(REMEMBERED_KIND, "a", expected_revision=1), PutDocument(KIND, "b", {}))
        assert registry.change_counters() == before

    def test_changes_of_uncached_documents_are_not_counted(self, registry: Registry):
        """Documents that change often leave other processes' caches valid, and so do new documents, unless their
        absence is cached."""
        before = registry.change_counters()
        for _ in range(3):
            registry.write(PutDocument(KIND, "a", {}))
        registry.write(
            PutDocument("event-types", "a", {}, expected_revision=ABSENT_REVISION),
            PutDocument("subscriptions", "a", {}, expected_revision=ABSENT_REVISION),
        )
        assert registry.change_counters() == before
        registry.write(PutDocument("settings", "a", {}, expected_revision=ABSENT_REVISION))
        assert registry.change_counters() != before

    def test_a_change_of_one_document_leaves_most_numbers_alone(self, registry: Registry):
        """A change of one document changes few change numbers, so caches need not read all documents again."""
        keys = [f"key-{each}" for each in range(50)]
        before = registry.change_counters()
        registry.write(PutDocument(REMEMBERED_KIND, keys[0], {}))
        after = registry.change_counters()
        changed = [key for key in keys if change_count_in(before, key) != change_count_in(after, key)]
        assert keys[0] in changed
        assert len(changed) < 5

    def test_are_no_documents(self, registry: Registry):
        """The change numbers do not appear in lists of documents."""
        registry.write(PutDocument(REMEMBERED_KIND, "a", {}))
        assert [each.key for each in registry.list(REMEMBERED_KIND)] == ["a"]

    def test_simultaneous_changes_are_all_counted(self, registry: Registry):
        """Writers that change different documents at the same time are not refused, and each change is counted."""
        writers = [str(each) for each in range(8)]
        before = registry.change_counters()
        run_in_threads(
            lambda at: [registry.write(PutDocument(REMEMBERED_KIND, writers[at], {})) for _ in range(5)], len(writers)
        )
        after = registry.change_counters()
        assert all(change_count_in(after, each) - change_count_in(before, each) >= 5 for each in writers)

    def test_are_seen_whenever_a_change_is(self, registry: Registry):
        """If a process finds an old change number before it reads a document, the document is at least as new as that
        number."""
        registry.write(PutDocument(REMEMBERED_KIND, "a", {"n": 0}))

        def change() -> None:
            for each in range(1, 60):
                registry.write(PutDocument(REMEMBERED_KIND, "a", {"n": each}))

        with ThreadPoolExecutor(1) as others:
            changing = others.submit(change)
            while not changing.done():
                tag = change_count(registry, REMEMBERED_KIND, "a")
                remembered = registry.get(REMEMBERED_KIND, "a").revision
                latest = registry.get(REMEMBERED_KIND, "a").revision
                if change_count(registry, REMEMBERED_KIND, "a") == tag:
                    assert remembered == latest
            changing.result()


def change_count(registry: Registry, kind: str, key: str) -> int:
    return registry.change_counters().count_of_bucket(change_bucket(kind, key))


def change_count_in(changes: ChangeCounters, key: str) -> int:
    return changes.count_of_bucket(change_bucket(REMEMBERED_KIND, key))


class TestClose:
    def test_refuses_what_comes_later(self, registry: Registry):
        """After closing, calls fail; closing again changes nothing."""
        registry.close()
        registry.close()
        attempts = {
            "get": lambda: registry.get(KIND, "a"),
            "list": lambda: registry.list(KIND),
            "write": lambda: registry.write(PutDocument(KIND, "a", {})),
            "change_counters": registry.change_counters,
        }
        assert_everything_is_refused(Registry, attempts)
