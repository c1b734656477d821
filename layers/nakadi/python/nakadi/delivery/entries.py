"""Events as entries of requests to a service: which entries share a request, and what the service's answers mean for
the batch.

Services such as SQS take a few entries in a request, and report the result of each. So one entry may fail while a later
one is accepted. Where a service keeps the order of a group, a request therefore has at most one entry of each group,
and after a failure nothing more is sent: no event is stored before an earlier event of its group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nakadi.delivery.answers import MAX_ANSWER_CHARACTERS, Answer, Verdict


class Entry(Struct, frozen=True):
    """An event at `index` of its batch, as the `members` of a request, which the service counts as `size` bytes.

    Entries of the same `group` have an order; an entry without a group has none.
    """

    index: int
    members: Mapping[str, Any]
    size: int
    group: str | None = None


class RequestLimits(Struct, frozen=True):
    entries: int
    bytes: int


class EntryFailure(Struct, frozen=True):
    """Why a service has not accepted an entry, and whether the event itself is to blame."""

    text: str
    is_blamed: bool


def plan_requests(entries: Iterable[Entry], limits: RequestLimits) -> Iterator[Sequence[Entry]]:
    """The entries of each request, in the order in which to send the requests.

    An entry that is too large has a request of its own, so that the service decides.
    """
    rounds: list[list[Entry]] = []
    sizes_of_groups: Counter[str] = Counter()
    for entry in entries:
        number = 0
        if entry.group is not None:
            number = sizes_of_groups[entry.group]
            sizes_of_groups[entry.group] += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(entry)
    for each in rounds:
        yield from _split(each, limits)


def _split(entries: Iterable[Entry], limits: RequestLimits) -> Iterator[Sequence[Entry]]:
    request: list[Entry] = []
    size = 0
    for entry in entries:
        if request and (len(request) == limits.entries or size + entry.size > limits.bytes):
            yield request
            request, size = [], 0
        request.append(entry)
        size += entry.size
    if request:
        yield request


def answer_of_entries(count: int, accepted: Collection[int], failures: Mapping[int, EntryFailure]) -> Answer:
    """The answer to a batch with this number of events, some of which the service accepted while others failed."""
    if len(accepted) == count:
        return Answer(200, verdict=Verdict.DELIVERED)
    delivered = next(index for index in range(count) if index not in accepted)
    text = failures[min(failures)].text[:MAX_ANSWER_CHARACTERS]
    failure = failures.get(delivered)
    # An event that was not sent, because another one failed before its turn, has no failure, and the next attempt
    # begins with it.
    is_blamed = failure is not None and failure.is_blamed
    return Answer(None, text, verdict=Verdict.FAILED if is_blamed else Verdict.LATER, delivered=delivered)
