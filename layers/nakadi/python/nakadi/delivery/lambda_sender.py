"""Invokes a Lambda function with each batch, and waits for what it returns.

A function may report which events of a batch it failed to process, as it does for SQS and Kinesis: it returns
`{"batchItemFailures": [{"itemIdentifier": …}]}` with the events' `eid`, or their indices in the batch. As with Kinesis,
only the first reported event matters: the events before it count as delivered, and the rest is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import orjson

from nakadi.delivery.answers import MAX_ANSWER_CHARACTERS, Answer, Verdict
from nakadi.delivery.aws_calls import AwsCalls, CallFailed
from nakadi.delivery.bodies import delivered_events, message_of
from nakadi.delivery.senders import Attempt
from nakadi.delivery.targets import Target, TargetRules, find_target, refusal_of_target

FAILURES, IDENTIFIER = "batchItemFailures", "itemIdentifier"


class LambdaSender:
    """The SDK blocks, so it is called in threads. `get_calls` imports the SDK at its first call."""

    def __init__(self, rules: TargetRules, get_calls: Callable[[], AwsCalls], threads: Executor) -> None:
        self._rules = rules
        self._get_calls = get_calls
        self._threads = threads

    async def deliver(self, attempt: Attempt) -> Answer:
        target = find_target(attempt.sink, self._rules)
        if target is None:
            return refusal_of_target(attempt.sink)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._invoke, target, attempt)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _invoke(self, target: Target, attempt: Attempt) -> Answer:
        body = message_of(attempt).body

        def invoke(client: Any) -> tuple[str | None, bytes]:
            answer = client.invoke(FunctionName=target.arn, InvocationType="RequestResponse", Payload=body)
            return answer.get("FunctionError"), answer["Payload"].read()

        try:
            error, result = self._get_calls().call("lambda", target.region, attempt.timeout_seconds, invoke)
        except CallFailed as failure:
            return answer_of_failed_call(failure)
        if error:
            return Answer(None, f"{error}: {_truncated_text(result)}"[:MAX_ANSWER_CHARACTERS], verdict=Verdict.FAILED)
        failed = failed_identifiers(result)
        if not failed:
            return Answer(200, verdict=Verdict.DELIVERED)
        return answer_of_failed_events(failed, [each.eid for each in delivered_events(attempt)])


def answer_of_failed_call(failure: CallFailed) -> Answer:
    """A rejected request, and a lost or late answer, count against the batch. If the function is missing or busy, no
    event is to blame.
    """
    counts = failure.blames_request or failure.may_have_arrived
    verdict = Verdict.FAILED if counts else Verdict.LATER
    return Answer(failure.status, str(failure)[:MAX_ANSWER_CHARACTERS], verdict=verdict)


def answer_of_failed_events(failed: Sequence[str], eids: Sequence[str | None]) -> Answer:
    """The answer of a function that reports these events as failed; `eids` are the ids of the batch."""
    places: dict[str, int] = {}
    for place, eid in enumerate(eids):
        # A name may be the id of one event and the index of another. It then stands for the earlier event, so none
        # counts as delivered by mistake.
        for name in (eid or "", str(place)):
            places.setdefault(name, place)
    first = min((places.get(each, -1) if each else -1) for each in failed)
    if first < 0:
        # The function named an event that is not in the batch, so it is unclear which events failed, and none counts as
        # delivered.
        text = f"{FAILURES} names what is not in the batch: {', '.join(failed)}"
        return Answer(200, text[:MAX_ANSWER_CHARACTERS], verdict=Verdict.FAILED)
    text = f"{FAILURES} names {len(failed)} of {len(eids)} events, first {eids[first] or first}"
    return Answer(200, text, verdict=Verdict.FAILED, delivered=first)


def failed_identifiers(result: bytes) -> Sequence[str]:
    """The events that a function names; an empty name stands for one with an invalid form."""
    try:
        found = orjson.loads(result)
    except ValueError:
        return ()
    failures = found.get(FAILURES) if isinstance(found, dict) else None
    if not failures:
        return ()
    if not isinstance(failures, list):
        return ("",)
    return [str(each.get(IDENTIFIER, "")) if isinstance(each, dict) else "" for each in failures]


def _truncated_text(result: bytes) -> str:
    return result[: 4 * MAX_ANSWER_CHARACTERS].decode(errors="replace")
