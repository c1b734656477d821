"""The examples of `docs/reading-streams.md` work with a broker."""

import ast
import asyncio
import json
import re
import shutil
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from nakadi.local import Broker
from tests.support import everything
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reading-streams.md").read_text("utf-8")
EVENTS = [{"n": 1, "text": "a \u2028 b \u2029 c \u0085 d"}, {"n": 2, "text": "é" * 300_000}, {"n": 3, "text": ""}]
EVENT_TYPE = {"name": "read", "category": "undefined", "owning_application": "a"}
SCHEMA = {"schema": {"type": "json_schema", "schema": "{}"}}


def source_of(name, language):
    """The block of code after a mark on the page."""
    return re.search(rf"<!-- run: {name} -->\n```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def python_example(name):
    """The names that the Python block after a mark defines."""
    defined = {}
    exec(compile(ast.parse(source_of(name, "python")), name, "exec"), defined)
    return defined


@pytest.fixture(scope="module")
def url():
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        api.post("/event-types", json=EVENT_TYPE | SCHEMA).raise_for_status()
        api.post("/event-types/read/events", json=EVENTS).raise_for_status()
        yield broker.url


class NoMoreEvents(Exception):
    """Raised by a handler that has seen everything."""


def test_the_example_of_httpx_consumes_a_subscription(url):
    """The example with httpx handles batches of a subscription, and commits them."""
    # As many events as a batch of the example has, so the batch arrives at once.
    events = [*EVENTS, *({"n": number} for number in range(len(EVENTS), 100))]
    httpx.post(
        f"{url}/event-types", json={**EVENT_TYPE, **SCHEMA, "name": "consumed"}, timeout=PATIENCE
    ).raise_for_status()
    httpx.post(f"{url}/event-types/consumed/events", json=events, timeout=PATIENCE).raise_for_status()
    body = {"owning_application": "a", "event_types": ["consumed"], "read_from": "begin"}
    subscription = httpx.post(f"{url}/subscriptions", json=body, timeout=PATIENCE).json()["id"]
    seen = []

    def handle(events_of_batch):
        seen.extend(events_of_batch)
        if len(seen) == len(events):
            raise NoMoreEvents

    with pytest.raises(NoMoreEvents):
        python_example("httpx")["consume"](url, subscription, handle)
    assert seen == events


def test_the_example_of_requests_reads_an_event_type(url):
    """The example reads every event, whatever characters it has."""
    begin = [{"partition": "0", "offset": "BEGIN"}]
    assert list(python_example("requests")["read"](url, "read", len(EVENTS), begin)) == EVENTS


def test_the_example_of_aiohttp_reads_long_lines(url):
    """The example with aiohttp reads lines that are longer than aiohttp's buffer."""

    async def first_event():
        reading = python_example("aiohttp")["read"](url, "read")
        waiting = asyncio.ensure_future(anext(reading))
        # The program begins with new events, so events are published until the first one has arrived.
        while not waiting.done():
            async with httpx.AsyncClient(timeout=PATIENCE) as api:
                await api.post(f"{url}/event-types/read/events", json=EVENTS[1:2])
            await asyncio.wait([waiting], timeout=0.2)
        await reading.aclose()
        return waiting.result()

    assert asyncio.run(first_event()) == EVENTS[1]


GO_PROGRAM = """package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

EXAMPLE

func main() {
	err := read(os.Args[1], os.Args[2], os.Args[3], func(batch Batch) {
		for _, event := range batch.Events {
			fmt.Println(string(event))
		}
	})
	if err != io.EOF {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
"""

JAVA_PROGRAM = """
import java.io.IOException;
import java.io.PrintStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.function.Consumer;

class Reading {
    EXAMPLE

    public static void main(String[] arguments) throws Exception {
        var out = new PrintStream(System.out, true, "UTF-8");
        read(arguments[0], arguments[1], arguments[2], out::println);
    }
}
"""

BEGIN = json.dumps([{"partition": "0", "offset": "BEGIN"}])


def lines_of_program(program, url, *command, **environment):
    """Run a program that reads the event type up to its third event, and return the lines that it prints."""
    arguments = [*command, str(program), url, "read", BEGIN]
    told = subprocess.run(
        arguments,
        env=plain_environment(**environment),
        capture_output=True,
        timeout=PATIENCE * 10,
        check=False,
        cwd=program.parent,
    )
    assert told.returncode == 0, told.stderr.decode()
    return [json.loads(line) for line in told.stdout.split(b"\n") if line]


@pytest.fixture
def url_of_ended_streams(url):
    """The address of a proxy that forwards streams of the broker, each up to its third event."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self):
            headers = {"X-Nakadi-Cursors": self.headers["X-Nakadi-Cursors"], "Accept-Encoding": "identity"}
            answer = httpx.get(
                f"{url}{self.path}", params={"stream_limit": len(EVENTS)}, headers=headers, timeout=PATIENCE
            )
            self.send_response(answer.status_code)
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(not everything.WANTED, reason="compiling Go's library takes half a minute: `make test-all`")
@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
def test_the_example_in_go_reads_long_lines(url_of_ended_streams, tmp_path):
    """The example in Go reads every event until the stream ends, whatever characters it has."""
    program = tmp_path / "reading.go"
    program.write_text(GO_PROGRAM.replace("EXAMPLE", source_of("go", "go")), "utf-8")
    # Later runs use what this run compiles.
    folders = {"GOCACHE": str(ROOT / ".cache" / "go"), "GOPATH": str(tmp_path / "go"), "GOTOOLCHAIN": "local"}
    assert lines_of_program(program, url_of_ended_streams, "go", "run", **folders) == EVENTS


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
def test_the_example_in_java_reads_long_lines(url_of_ended_streams, tmp_path):
    """The example in Java reads every event until the stream ends, whatever characters it has."""
    program = tmp_path / "Reading.java"
    program.write_text(JAVA_PROGRAM.replace("EXAMPLE", source_of("java", "java")), "utf-8")
    lines = lines_of_program(program, url_of_ended_streams, "java")
    assert [event for line in lines for event in line.get("events", [])] == EVENTS
