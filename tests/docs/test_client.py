"""The examples of `docs/client.md` and of the package's README work, in their order, with a broker."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace

import pytest

from nakadi_client import Limits
from nakadi_client.testing import LocalNakadi
from tests.support.pages import ROOT
from tests.support.patience import wait_on_loop

PAGES = (ROOT / "docs/client.md", ROOT / "nakadi_client/README.md")
PAGE = PAGES[0].read_text()
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


class NoMoreEvents(Exception):
    """Raised in a loop that would wait for more events."""


@pytest.fixture(scope="module")
def nakadi():
    with LocalNakadi() as nakadi:
        nakadi.create_event_type("order.placed")
        nakadi.create_event_type("orders.parked")
        yield nakadi


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_runs(page, nakadi):
    """Each pasted example does what the page says."""
    handled = []

    def handle(events):
        handled.extend(events)
        raise NoMoreEvents

    for number, code in enumerate(BLOCK.findall(page.read_text())):
        names = {"ID": nakadi.subscribe("order.placed", consumer_group=f"{page.name} {number}")}
        names |= {"handle": handle, "read_secret": lambda: "secret"}
        handled.clear()
        source = code.replace("https://events.example.org", nakadi.url)
        try:
            exec(compile(source, f"{page.name}, example {number}", "exec"), names)
            if "lifespan" in names:
                asyncio.run(run_application(names["lifespan"], handled))
        except NoMoreEvents:
            assert handled
        else:
            assert "consume" not in code


async def run_application(lifespan, handled):
    """Run an ASGI application that publishes an event, and ends when the event is handled."""
    app = SimpleNamespace(state=SimpleNamespace())
    async with lifespan(app):
        await (await app.state.producer.send({"order_number": "A-2"}))
        await wait_on_loop(lambda: handled)


def test_the_table_of_limits_has_the_defaults_of_the_code():
    """The table has each limit, with its default."""
    table = PAGE[PAGE.index("| field of `Limits`") : PAGE.index("The producer reacts to responses as follows")]
    limits = Limits()
    for name in Limits.__struct_fields__:
        assert f"`{name}`" in table
        assert f"{getattr(limits, name):,}".removesuffix(".0") in table
