"""What the streaming service tells of itself."""

import asyncio
import io
import json
from contextlib import suppress

import pytest

from nakadi.http.message import Request, Response, Streaming
from services.streaming.doorway import Doorway, measured, tell


class Answers:
    def __init__(self, answer):
        self._answer = answer

    def answer(self, _request):
        return self._answer


def test_open_streams_are_counted():
    """A stream counts from its first byte to its end, also when it ends badly."""
    seen = []

    async def well(outlet):
        await outlet.write(b"")

    async def badly(outlet):
        await outlet.write(b"")
        raise ConnectionError

    for serve in (well, badly):
        counted(serve, seen)

    assert seen == [0, 1, 0] * 2


def counted(serve, seen):
    doorway = Doorway(Answers(Streaming(serve)), "")
    seen.append(doorway.open_streams)

    class Outlet:
        async def write(self, _chunk):
            seen.append(doorway.open_streams)

    answer = doorway.answer(Request(method="GET", path="/", target="/"))
    with suppress(ConnectionError):
        asyncio.run(answer.serve(Outlet()))
    seen.append(doorway.open_streams)


def test_other_answers_pass():
    """What is no stream is not touched."""
    answer = Response(200, {}, b"OK")

    assert Doorway(Answers(answer), "").answer(Request(method="GET", path="/", target="/")) is answer


def test_a_metric_is_a_line():
    """CloudWatch reads the number of open streams from a line of JSON."""
    line = measured("nakadi-dev-streaming", 7, 1_700_000_000.5)

    directive = line["_aws"]["CloudWatchMetrics"][0]
    assert line["_aws"]["Timestamp"] == 1_700_000_000_500
    assert directive["Dimensions"] == [["service"]]
    assert [line[metric["Name"]] for metric in directive["Metrics"]] == [7]
    assert line["service"] == "nakadi-dev-streaming"


def test_it_is_told_again_and_again():
    """A service tells how many streams it has, whole lines at a time, until it is cancelled."""
    told = []

    class ThreeLines(io.StringIO):
        def flush(self):
            told.append(self.getvalue().splitlines()[-1])
            if len(told) == 3:
                asyncio.current_task().cancel()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(tell(Doorway(Answers(None), ""), "s", every_seconds=0, to=ThreeLines()))

    assert [json.loads(line)["OpenStreams"] for line in told] == [0, 0, 0]
