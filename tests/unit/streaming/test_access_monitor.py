"""Monitoring the access of open streams."""

import asyncio
import threading

from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.streaming.access import StreamAccessMonitor
from tests.support.builders import an_event_type
from tests.support.patience import PATIENCE


class SilentAccess:
    """Read access whose registry does not answer."""

    def __init__(self):
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.over = threading.Event()

    def refresh_features(self):
        self.asked.set()
        self.answers.wait(PATIENCE)
        self.over.set()

    def access_change_for(self, *_):
        return None


def test_a_registry_that_does_not_answer_holds_up_neither_the_loop_nor_its_end():
    """A check that waits for the registry runs in a separate thread, and is abandoned when streaming ends."""
    access = SilentAccess()
    monitor = StreamAccessMonitor(access, seconds=0)

    async def record_stream():
        with monitor.monitor(object(), UNAUTHENTICATED, an_event_type()):
            await asyncio.to_thread(access.asked.wait, PATIENCE)
            assert await asyncio.to_thread(lambda: "others have threads") == "others have threads"
        monitor.close()

    asyncio.run(record_stream())  # `asyncio.run` would wait for the shared threads
    assert not access.over.is_set()
    access.answers.set()
