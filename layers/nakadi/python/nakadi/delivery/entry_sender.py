"""Sends the events of a batch to a service that takes a few events in a request: SQS, SNS or EventBridge.

The SDK blocks, so it is called in threads. No timeout abandons a call: entries of an abandoned call might arrive after
later ones. The sender waits for each request, and begins none after the attempt's time has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from nakadi.delivery.answers import Answer
from nakadi.delivery.aws_calls import AwsCalls, CallFailed
from nakadi.delivery.bodies import delivered_events
from nakadi.delivery.entries import Entry, EntryFailure, answer_of_entries, plan_requests
from nakadi.delivery.entry_services import LIMITS, EntryService
from nakadi.delivery.senders import Attempt
from nakadi.delivery.targets import Target, TargetRules, find_target, refusal_of_target

REQUEST_SECONDS = 10.0
"""How long a service may take to answer a request."""


class EntrySender:
    """`get_calls` loads the SDK at its first call."""

    def __init__(
        self,
        service: EntryService,
        rules: TargetRules,
        get_calls: Callable[[], AwsCalls],
        threads: Executor,
        monotonic: Callable[[], float],
    ) -> None:
        self._service = service
        self._rules = rules
        self._get_calls = get_calls
        self._threads = threads
        self._monotonic = monotonic

    async def deliver(self, attempt: Attempt) -> Answer:
        target = find_target(attempt.sink, self._rules)
        if target is None:
            return refusal_of_target(attempt.sink)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._send_all, target, attempt)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _send_all(self, target: Target, attempt: Attempt) -> Answer:
        deadline = self._monotonic() + attempt.timeout_seconds
        events = delivered_events(attempt)
        entries = [self._service.make_entry(target, index, each) for index, each in enumerate(events)]
        accepted: set[int] = set()
        for request in plan_requests(entries, LIMITS):
            if self._monotonic() < deadline:
                failures = self._send(target, request)
            else:
                failures = _failures_of(request, f"It did not take all events within {attempt.timeout_seconds:g} s")
            accepted.update(each.index for each in request if each.index not in failures)
            if failures:
                return answer_of_entries(len(entries), accepted, failures)
        return answer_of_entries(len(entries), accepted, {})

    def _send(self, target: Target, request: Sequence[Entry]) -> Mapping[int, EntryFailure]:
        """Send a request, and return the entries that the service has not accepted, with reasons."""
        try:
            return self._get_calls().call(
                self._service.name,
                target.region,
                REQUEST_SECONDS,
                lambda client: self._service.send(client, target, request),
            )
        except CallFailed as error:
            if error.blames_request and len(request) > 1:
                return self._send_one_by_one(target, request)
            return _failures_of(request, str(error), is_blamed=error.blames_request)

    def _send_one_by_one(self, target: Target, request: Sequence[Entry]) -> Mapping[int, EntryFailure]:
        """Send each entry in its own request: the service rejected the request because of one entry, and did not say
        which.
        """
        for number, entry in enumerate(request, 1):
            failures = self._send(target, [entry])
            if failures:
                return {**failures, **_failures_of(request[number:], "It was not sent")}
        return {}


def _failures_of(request: Sequence[Entry], text: str, *, is_blamed: bool = False) -> Mapping[int, EntryFailure]:
    return {each.index: EntryFailure(text, is_blamed) for each in request}
