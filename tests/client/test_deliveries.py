"""Reports of events: whoever waits for one may have given up before it arrives."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nakadi_client.deliveries import Delivered, Delivery


def test_a_report_for_an_ended_event_loop_logs_nothing(caplog):
    """A program stops awaiting a report, and its event loop ends. When the report arrives, nothing has failed."""
    delivery = Delivery(b"{}")

    async def give_up() -> None:
        waiting = asyncio.create_task(wait_for_report(delivery))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())
    delivery.outcome = Delivered(eid=None, attempts=1, maybe_doubled=False)
    with caplog.at_level(logging.ERROR):
        delivery.announce()
    assert caplog.records == []


async def wait_for_report(delivery: Delivery) -> None:
    await delivery
