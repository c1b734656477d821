"""The examples of `docs/reading-streams.md` read from a broker."""

import ast
import asyncio
import re
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from nakadi.local import Broker

PAGE = (Path(__file__).parents[2] / "docs" / "reading-streams.md").read_text()
EVENTS = [{"n": 1, "text": "a \u2028 b \u2029 c \u0085 d"}, {"n": 2, "text": "é" * 300_000}, {"n": 3, "text": ""}]
EVENT_TYPE = {"name": "read", "category": "undefined", "owning_application": "a"}
SCHEMA = {"schema": {"type": "json_schema", "schema": "{}"}}


def example(name):
    """What the Python block behind a mark defines."""
    source = re.search(rf"<!-- (?:run: )?{name} -->\n```python\n(.*?)```", PAGE, re.DOTALL)[1]
    defined = {}
    exec(compile(ast.parse(source), name, "exec"), defined)
    return defined


@pytest.fixture(scope="module")
def url():
    with Broker() as broker, httpx.Client(base_url=broker.url) as api:
        api.post("/event-types", json=EVENT_TYPE | SCHEMA).raise_for_status()
        api.post("/event-types/read/events", json=EVENTS).raise_for_status()
        yield broker.url


class Enough(Exception):
    """Raised by a handler that has seen everything."""


def test_the_example_of_httpx_consumes_a_subscription(url):
    """Batches are handled and committed."""
    body = {"owning_application": "a", "event_types": ["read"], "read_from": "begin"}
    subscription = httpx.post(f"{url}/subscriptions", json=body).json()["id"]
    seen = []

    def handle(events):
        seen.extend(events)
        if len(seen) == len(EVENTS):
            raise Enough

    with pytest.raises(Enough):
        example("httpx")["consume"](url, subscription, handle)
    assert seen == EVENTS


@pytest.mark.skipif(find_spec("requests") is None, reason="requests is not installed")
def test_the_example_of_requests_reads_an_event_type(url):
    """Every event comes, whatever characters it has."""
    begin = [{"partition": "0", "offset": "BEGIN"}]
    assert list(example("requests")["read"](url, "read", len(EVENTS), begin)) == EVENTS


@pytest.mark.skipif(find_spec("aiohttp") is None, reason="aiohttp is not installed")
def test_the_example_of_aiohttp_reads_long_lines(url):
    """A line may be longer than aiohttp's buffer."""

    async def first_event():
        reading = example("aiohttp")["read"](url, "read")
        waiting = asyncio.ensure_future(anext(reading))
        # From now on is where it begins, so events are published until the first one has come.
        while not waiting.done():
            async with httpx.AsyncClient() as api:
                await api.post(f"{url}/event-types/read/events", json=EVENTS[1:2])
            await asyncio.wait([waiting], timeout=0.2)
        await reading.aclose()
        return waiting.result()

    assert asyncio.run(first_event()) == EVENTS[1]
