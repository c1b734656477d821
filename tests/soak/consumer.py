"""A consumer in its own process: `python consumer.py HOST SUBSCRIPTION DIARY`.

It writes events into its diary before it commits them, so the diary has all committed events, however the process ends.
It reconnects whenever its stream ends. It imports little, because the soak starts it often.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import sys
import time
from typing import Any

PARAMETERS = "batch_limit=50&batch_flush_timeout=1&max_uncommitted_events=500&commit_timeout=5"
PAUSE = 0.2

# The longest time in seconds that the consumer works on a batch before it commits.
MOST_WORK = 0.1


class Consumer:
    def __init__(self, host: str, subscription: str, diary: int) -> None:
        self._host = host
        self._path = f"/subscriptions/{subscription}"
        self._diary = diary

    def consume_for_ever(self) -> None:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._consume()
            time.sleep(PAUSE)

    def _consume(self) -> None:
        stream = http.client.HTTPConnection(self._host, timeout=60)
        asked = time.monotonic()
        stream.request("GET", f"{self._path}/events?{PARAMETERS}")
        answer = stream.getresponse()
        if answer.status == 200:
            session = answer.headers["X-Nakadi-StreamId"]
            self._note("opened", session, asked)
            committer = http.client.HTTPConnection(self._host, timeout=60)
            for line in answer:
                batch = json.loads(line)
                if "events" in batch:
                    self._take(committer, session, batch)

    def _take(self, committer: http.client.HTTPConnection, session: str, batch: dict[str, Any]) -> None:
        cursor = batch["cursor"]
        place = [cursor["partition"], cursor["offset"]]
        self._note("got", session, *place, [each["id"] for each in batch["events"]])
        time.sleep(random.uniform(0, MOST_WORK))
        headers = {"Content-Type": "application/json", "X-Nakadi-StreamId": session}
        committer.request("POST", f"{self._path}/cursors", json.dumps({"items": [cursor]}), headers)
        answer = committer.getresponse()
        answer.read()
        if answer.status in {200, 204}:
            self._note("committed", session, *place)

    def _note(self, *what: Any) -> None:
        os.write(self._diary, json.dumps([time.monotonic(), *what]).encode() + b"\n")


if __name__ == "__main__":
    host, subscription, path = sys.argv[1:]
    Consumer(host, subscription, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)).consume_for_ever()
