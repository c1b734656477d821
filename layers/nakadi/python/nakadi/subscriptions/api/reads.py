"""Declared reads: whether the members exist, and how they have changed since the declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from heapq import nlargest
from itertools import islice

from msgspec import UNSET, Struct
from msgspec.structs import replace

from nakadi.event_types.effective_schemas import effective_schema_of
from nakadi.event_types.members import members_of, schema_that_readers_see
from nakadi.event_types.repository import EventTypes
from nakadi.model.event_type import EventType
from nakadi.model.outcomes import Violation, Violations
from nakadi.model.reads import ReadChange, Reader
from nakadi.model.subscription import Subscription, SubscriptionDraft
from nakadi.schemas.read_paths import read_path_text
from nakadi.schemas.reads import find_read_changes, unknown_paths

MAX_NAMED_PATHS = 10
"""The number of unknown paths that a Problem names."""

MAX_COMPARED_CHARACTERS, MAX_COMPARED_MEMBERS = 100, 1_000
MAX_CLOSELY_COMPARED_MEMBERS = 10
"""The number of members that are closely compared with a path. A close comparison of two names takes milliseconds;
comparing only the counts of their letters takes a hundredth of that."""

NO_READS_MESSAGE = "needs `reads`, which say what is to be sent"


class ChangedRead(Struct, frozen=True):
    """A change of a member that a subscription reads, caused by a version of an event type's schema."""

    event_type: str
    version: str
    change: ReadChange


def with_declaration(
    subscription: Subscription, draft: SubscriptionDraft, event_types: Sequence[EventType]
) -> Subscription:
    """The subscription with a draft's declaration. Raises `Violations` for members that no schema of its event types
    has.

    A client that repeats its declaration has seen the current schemas.
    """
    reads, versions = subscription.reads, subscription.declared_versions
    if draft.reads is not UNSET:
        # The check against the API description refuses nulls.
        paths = [each for each in draft.reads or () if each is not None]
        _check_declared(paths, event_types)
        reads = None if draft.reads is None else tuple(dict.fromkeys(paths))
        versions = {} if reads is None else {each.name: str(each.schema.version) for each in event_types}
    projection = subscription.projection if draft.projection is UNSET else bool(draft.projection)
    if projection and reads is None:
        if draft.projection is not UNSET:
            raise Violations((Violation("projection", NO_READS_MESSAGE),))
        projection = False
    return replace(subscription, reads=reads, projection=projection, declared_versions=versions)


def _check_declared(paths: Sequence[str], event_types: Sequence[EventType]) -> None:
    missing = set(paths)
    for event_type in event_types:
        if missing:
            missing &= set(unknown_paths(schema_that_readers_see(event_type), sorted(missing)))
    if missing:
        known = _known_members(event_types)
        violations = (
            Violation(
                f"reads[{index}]", f"`{path}` is in no schema of the event types{_most_similar_member(path, known)}"
            )
            for index, path in enumerate(paths)
            if path in missing
        )
        raise Violations(tuple(islice(violations, MAX_NAMED_PATHS)))


def _known_members(event_types: Sequence[EventType]) -> list[str]:
    """The members that a misspelled path may mean. Long paths are left out, because comparing them would take too
    long.
    """
    members = (read_path_text(path) for each in event_types for path in members_of(each))
    return list(islice((each for each in members if len(each) <= MAX_COMPARED_CHARACTERS), MAX_COMPARED_MEMBERS))


def _most_similar_member(path: str, known: Sequence[str]) -> str:
    if len(path) > MAX_COMPARED_CHARACTERS:
        return ""
    letters = SequenceMatcher(b=path)

    def share_of_same_letters(member: str) -> float:
        letters.set_seq1(member)
        return letters.quick_ratio()

    alike = nlargest(MAX_CLOSELY_COMPARED_MEMBERS, known, key=share_of_same_letters)
    found = get_close_matches(path, alike, n=1)
    return f"; the nearest is `{found[0]}`" if found else ""


class SubscribedReads(Struct, frozen=True):
    event_types: EventTypes

    def changes_since_declared(
        self, subscription: Subscription, is_visible: Callable[[EventType], bool] = lambda _: True
    ) -> tuple[ChangedRead, ...]:
        """The effects of current schemas on reads that were declared with earlier ones, in visible event types."""
        return tuple(self._changes(subscription, is_visible)) if subscription.reads else ()

    def _changes(self, subscription: Subscription, is_visible: Callable[[EventType], bool]) -> Iterator[ChangedRead]:
        for name, version in subscription.declared_versions.items():
            current = self.event_types.find(name)
            if current is None or str(current.schema.version) == version or not is_visible(current):
                continue
            declared = next((each for each in self.event_types.schemas(current) if str(each.version) == version), None)
            if declared is None:
                continue
            before = effective_schema_of(replace(current, schema=declared))
            for change in find_read_changes(before, effective_schema_of(current), subscription.reads or ()):
                yield ChangedRead(name, str(current.schema.version), change)


def reader_of(subscription: Subscription) -> Reader:
    return Reader(
        subscription_id=subscription.id,
        owning_application=subscription.owning_application,
        consumer_group=subscription.consumer_group,
        reads=subscription.reads,
    )
