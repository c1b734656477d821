"""The program with several processes: who answers, who commits, and what is there when one of them is killed."""

import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support import http
from tests.support.patience import PATIENCE, until
from tests.support.processes import listens, running

EVENT_TYPE = {
    "name": "kept.thing",
    "owning_application": "me",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": "{}"},
}
EVENTS = f"/event-types/{EVENT_TYPE['name']}/events"

PUBLISHED = 'nakadi_events_published_total{event_type="kept.thing"}'

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="it asks Linux for its processes")


class Program:
    def __init__(self, process):
        self.process = process
        greeting = ""
        while "Ctrl-C ends it." not in greeting:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            greeting += line
        self.url = re.search(r"ready at (\S+)", greeting)[1]

    @property
    def workers(self):
        """The numbers of its processes."""
        return [
            int(each) for each in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said

    def published(self):
        """How many events the broker says were published; 0 if it does not say. Late processes count as last seen."""
        text = http.get(f"{self.url}/metrics", headers={"Accept": "text/plain;version=0.0.4"}).text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(PUBLISHED))
        return float(values.get(PUBLISHED, 0))


def has_ended(process):
    """Whether a process has ended; one that was left behind stays until something collects it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextmanager
def started(data):
    command = [sys.executable, "-W", "error", "-m", "nakadi.local", "--port=0", "--data", str(data), "--workers=2"]
    with running(command) as process:
        program = Program(process)
        try:
            yield program
        finally:
            # Killing the one that was started would be enough; this holds if it is broken as well.
            with suppress(OSError):
                for each in program.workers:
                    os.kill(each, signal.SIGKILL)


class Publishers:
    """Clients with a connection each, which publish events with a name of their own until they are stopped."""

    def __init__(self, url):
        self.acknowledged, self.sent = Counter(), Counter()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(url, number)) for number in range(6)]
        for each in self._threads:
            each.start()

    def _publish(self, url, thread):
        api, number = httpx.Client(base_url=url, timeout=PATIENCE), 0
        while not self._stopped.is_set():
            name = f"{thread}.{number}"
            number += 1
            self.sent[name] += 1
            try:
                if api.post(EVENTS, json=[{"name": name}]).status_code == 200:
                    self.acknowledged[name] += 1
            except httpx.TransportError:
                # The connection was one of a process that was killed; the next one may lead to another.
                api.close()
                api = httpx.Client(base_url=url, timeout=PATIENCE)
                if not listens(httpx.URL(url).port):
                    break
        api.close()

    def stop(self):
        self._stopped.set()
        for each in self._threads:
            each.join()


def names_in(url):
    """The names of all events, in the order of their offsets."""
    [partition] = http.get(f"{url}/event-types/{EVENT_TYPE['name']}/partitions").json()
    newest = int(partition["newest_available_offset"][-18:])
    cursors = json.dumps([{"partition": "0", "offset": "BEGIN"}])
    found = []
    with httpx.stream("GET", f"{url}{EVENTS}", headers={"X-Nakadi-Cursors": cursors}, timeout=PATIENCE) as stream:
        for line in stream.iter_lines():
            found += [event["name"] for event in json.loads(line).get("events", [])]
            if len(found) > newest:
                break
    return found


def test_it_serves_as_one_broker_and_outlives_its_workers(tmp_path):
    """Two workers share commits, see each other's changes at once, and one that is killed is started again.

    Nothing that was acknowledged is lost, and nothing is there twice.
    """
    with started(tmp_path) as program:
        first, second = (httpx.Client(base_url=program.url, timeout=PATIENCE) for _ in range(2))
        with first, second:
            # Each has a connection, and so a worker of its own: the one with fewest gets the next.
            assert first.get("/health").text == second.get("/health").text == "OK"
            assert first.post("/event-types", json=EVENT_TYPE).status_code == 201
            assert second.post(EVENTS, json=[{"name": "second"}]).status_code == 200
            assert first.post(EVENTS, json=[{"name": "first"}]).status_code == 200
            for owner in ("you", "them", "me"):
                assert first.put("/event-types/kept.thing", json={**EVENT_TYPE, "owning_application": owner}).is_success
                assert second.get("/event-types/kept.thing").json()["owning_application"] == owner
        until(lambda: program.published() == 2)

        publishers = Publishers(program.url)
        try:
            until(lambda: len(publishers.acknowledged) > 30)
            until(lambda: program.published() > 30)
            published = program.published()
            killed = program.workers[0]
            os.kill(killed, signal.SIGKILL)
            until(lambda: killed not in program.workers and len(program.workers) == 2)
            seen = len(publishers.acknowledged)
            until(lambda: len(publishers.acknowledged) > seen + 30)
        finally:
            publishers.stop()
        names = Counter(names_in(program.url))
        assert publishers.acknowledged.keys() - names.keys() == set()
        assert set(names.values()) == {1}
        assert names.keys() - publishers.sent.keys() == {"first", "second"}
        # What had been counted when the metrics were last read is still in the sum, though its process has died.
        until(lambda: program.published() >= published)
        code, said = program.end()
        assert (code, said.count("\n")) == (0, 1), said
        assert re.search(r"Worker \d ended with -9, it is started again", said)


def test_nothing_acknowledged_is_lost_when_the_process_that_commits_is_killed(tmp_path):
    """Its workers end by themselves, and the next start has everything, once."""
    with started(tmp_path) as program:
        http.post(f"{program.url}/event-types", json=EVENT_TYPE).raise_for_status()
        publishers = Publishers(program.url)
        try:
            until(lambda: len(publishers.acknowledged) > 50)
            workers = program.workers
            program.process.kill()
            until(lambda: all(map(has_ended, workers)))
        finally:
            publishers.stop()
    with started(tmp_path) as program:
        names = Counter(names_in(program.url))
        assert publishers.acknowledged.keys() - names.keys() == set()
        assert set(names.values()) == {1}
        assert program.end() == (0, "")
