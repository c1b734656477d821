"""Publishes the events that are read from an event type with an Avro schema."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from nakadi_cli.api import failure_of, path, refusal_failure
from nakadi_cli.failures import Failed
from nakadi_cli.mirroring.avro import MEDIA_TYPE, AvroForm
from nakadi_cli.mirroring.definitions import schema_versions
from nakadi_cli.mirroring.events import RETRIES, Problem, event_for_target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nakadi_cli.api import Api

_JSON = "application/json"
_LONGEST_PAUSE_SECONDS = 5.0
_BUSY = frozenset({408, 429})


class AvroDestination:
    """Publishes in Avro the events that were published in Avro, and as JSON those that were published as JSON."""

    def __init__(
        self, source: Api, target: Api, definition: Mapping[str, Any], pause: Callable[[float], None] = time.sleep
    ) -> None:
        name = definition["name"]
        self._form = AvroForm(definition, schema_versions(source, name), schema_versions(target, name))
        self._target = target
        self._definition = definition
        self._where = path("event-types", name, "events")
        self._pause = pause

    def publish(self, events: Sequence[bytes]) -> Problem | None:
        published = 0
        pairs = [(self._form.envelope_of(each), each) for each in events]
        for is_json, run in groupby(pairs, lambda pair: pair[0] is None):
            some = list(run)
            if is_json:
                texts = [event_for_target(event, self._definition) for _, event in some]
                problem = self._send(b"[" + b",".join(texts) + b"]", _JSON)
            else:
                problem = self._send(self._form.batch_of(each for each, _ in some if each is not None), MEDIA_TYPE)
            if problem:
                return published + problem[0], problem[1]
            published += len(some)
        return None

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _send(self, body: bytes, media_type: str) -> Problem | None:
        """Publish a batch, with retries. Returns the event that the target rejects permanently, or None if all events
        are stored. Raises `Failed` otherwise.
        """
        from nakadi_client import NoAnswer
        from nakadi_client.connections import Request

        request = Request("POST", self._where, body, {"Content-Type": media_type})
        for number in range(RETRIES + 1):
            if number:
                self._pause(min(0.1 * 2**number, _LONGEST_PAUSE_SECONDS))
            answer = self._target.attempt(request)
            if isinstance(answer, NoAnswer):
                failure: Failed = failure_of(answer)
            elif answer.status == 200:
                return None
            elif answer.status in (207, 422):
                problem = _first_problem(answer.body)
                if problem is None:
                    raise refusal_failure(answer)
                if problem[2]:
                    return problem[0], problem[1]
                failure = Failed(problem[1])
            elif answer.status < 500 and answer.status not in _BUSY:
                raise refusal_failure(answer)
            else:
                failure = refusal_failure(answer)
        raise failure


def _first_problem(body: bytes) -> tuple[int, str, bool] | None:
    """The first event that was not stored, the reason, and whether that is permanent: the other events were given up
    because of it.
    """
    try:
        items = json.loads(body)
        statuses = [each["publishing_status"] for each in items]
        failed = statuses.index("failed")
    except (ValueError, KeyError, TypeError):
        return None
    return failed, items[failed].get("detail", ""), "submitted" not in statuses and statuses.count("failed") == 1
