"""Oversight over open streams."""

import asyncio
import threading

from nakadi.model.authorization import UNAUTHENTICATED
from nakadi.streaming.access import StreamAccessMonitor
from tests.support.builders import an_event_type
from tests.support.patience import PATIENCE


class SilentJudge:
    """A judge whose registry does not answer."""

    def __init__(self):
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.over = threading.Event()

    def refresh_features(self):
        self.asked.set()
        self.answers.wait(PATIENCE)
        self.over.set()

    def verdict(self, *_):
        return None


def test_a_registry_that_does_not_answer_holds_up_neither_the_loop_nor_its_end():
    """A look that waits for the registry has a thread of its own, and is left behind when streaming is over."""
    judge = SilentJudge()
    oversight = StreamAccessMonitor(judge, seconds=0)

    async def streamed():
        with oversight.monitor(object(), UNAUTHENTICATED, an_event_type()):
            await asyncio.to_thread(judge.asked.wait, PATIENCE)
            assert await asyncio.to_thread(lambda: "others have threads") == "others have threads"
        oversight.close()

    asyncio.run(streamed())  # which would wait for the threads that all share
    assert not judge.over.is_set()
    judge.answers.set()
