"""Opening streams, and monitoring those that are open."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import orjson
import pytest
from msgspec.structs import replace

from nakadi.auth.admins import Admins
from nakadi.auth.blacklist import Blacklist
from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.common.caching import Cache
from nakadi.common.waiting import run_blocking
from nakadi.engines.memory.registry import MemoryRegistry
from nakadi.event_types.repository import EventTypes
from nakadi.event_types.snapshot import CursorResolver
from nakadi.http.message import Request
from nakadi.http.problem import problem_of_error
from nakadi.http.routes.streams import routes
from nakadi.model.authorization import Attribute, Authorization, BlockedKind, Feature, Subject
from nakadi.model.event_type import EventType
from nakadi.model.events import Record
from nakadi.model.outcomes import NotFound, NotPermitted, Unavailable
from nakadi.ports.clock import SystemClock
from nakadi.streaming.access import ReadAccess
from nakadi.streaming.driver import LowLevelDriver
from nakadi.streaming.formats import JsonStreamFormat
from nakadi.streaming.session import StreamParameters
from nakadi.streaming.streams import EventStreams
from tests.support.builders import an_event_type
from tests.support.patience import PATIENCE, wait_on_loop
from tests.support.places import KnownLogs
from tests.support.registry import settings_document
from tests.support.streaming import NullFigures, ObservedLog, RecordingOutlet

ANN = Subject("ann", frozenset({Attribute("user", "ann")}))
BOB = Subject("bob", frozenset({Attribute("user", "bob")}))

BEGIN = '[{"partition":"0","offset":"BEGIN"}]'

Scenario = Callable[["StreamSetup"], Awaitable[None]]


def authorization_of_readers(*names: str) -> Authorization:
    """Authorization lists in which Ann has every role, and these subjects are also readers."""
    ann = (Attribute("user", "ann"),)
    return Authorization(admins=ann, writers=ann, readers=tuple(Attribute("user", name) for name in names))


class StreamSetup:
    """A registry, a log, and the streams that use them. `elsewhere` is another process with the same registry."""

    def __init__(self) -> None:
        self.log = ObservedLog()
        registry, clock = MemoryRegistry(), SystemClock()
        self.event_types = EventTypes(registry, Cache(clock, 0.05))
        self.elsewhere = EventTypes(registry, Cache(clock, 0.05))
        self.features = Features(settings_document("features"))
        self.blacklist = Blacklist(settings_document("blacklist"))
        admins = Admins(settings_document("admins"), self.features, ())
        self.permissions = Permissions(admins, self.blacklist, (Attribute("user", "the-archiver"),))
        self.access = ReadAccess(self.event_types, self.permissions, self.features)
        self.streams = EventStreams(
            event_types=self.event_types,
            access=self.access,
            cursor_resolver=CursorResolver(self.log),
            logs=self.log,
            clock=clock,
        )
        self.streams._monitor._seconds = 0.05
        self.running: list[asyncio.Task[None]] = []

    def add(self, **fields: object) -> EventType:
        event_type = an_event_type(**fields)
        self.log.create_topic(event_type.timeline.topic, event_type.timeline.partitions)
        self.event_types.add(event_type)
        return self.event_types.get(event_type.name)

    def publish(self, event_type: EventType, *records: Record | str) -> None:
        made = [each if isinstance(each, Record) else Record(f'"{each}"'.encode()) for each in records]
        run_blocking(self.log.append(event_type.timeline.topic, {0: made}))

    def serve(self, event_type: EventType, outlet: RecordingOutlet, subject: Subject = ANN, **asked: int) -> None:
        opening = self.streams.open(event_type.name, StreamParameters(**asked), BEGIN, subject)
        lines = JsonStreamFormat()
        serving = self.streams.serve(opening, lines, outlet, NullFigures(), lambda error: problem_of_error(error).body)
        self.running.append(asyncio.ensure_future(serving))

    async def wait_for_end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self.running)

    def close(self) -> None:
        self.streams.close()


@pytest.fixture
def stage():
    made = StreamSetup()
    yield made
    made.close()


def run_with(stage: StreamSetup, scenario: Awaitable[None]) -> None:
    async def run_scenario() -> None:
        try:
            await scenario
        finally:
            for task in stage.running:
                task.cancel()
            await asyncio.gather(*stage.running, return_exceptions=True)

    asyncio.run(run_scenario())


def problem(outlet: RecordingOutlet) -> tuple[int, str]:
    """The status and the detail of the Problem in the last line of a stream."""
    body = orjson.loads(outlet.text.splitlines()[-1])
    return body["status"], body["detail"]


# Opening


def test_a_stream_of_an_unknown_event_type_is_refused(stage):
    """The message about an unknown event type differs from that of other operations. (L15)"""
    with pytest.raises(NotFound, match=r"^topic not found$"):
        stage.streams.open("nothing", StreamParameters(), None, ANN)


def test_a_block_comes_before_everything(stage):
    """Blocked consumers do not learn whether the event type exists. (L12, L14)"""
    stage.blacklist.block(BlockedKind.CONSUMER_APP, "ann")
    with pytest.raises(NotPermitted, match="blocked"):
        stage.streams.open("nothing", StreamParameters(), "garbage", ANN)


def test_a_log_that_does_not_answer_is_no_fault_of_the_client(stage):
    """While the storage does not answer, the answer to opening a stream is 503. (L19)"""
    event_type = stage.add()
    logs = KnownLogs(down=True)
    streams = EventStreams(
        event_types=stage.event_types,
        access=stage.access,
        cursor_resolver=CursorResolver(logs),
        logs=logs,
        clock=SystemClock(),
    )
    with pytest.raises(Unavailable) as failure:
        streams.open(event_type.name, StreamParameters(), None, ANN)
    answer = problem_of_error(failure.value)
    assert answer.status == 503
    assert orjson.loads(answer.body)["detail"] == "Error occurred when fetching partitions offsets"


def test_without_cursors_all_partitions_begin_at_their_ends(stage):
    """Without cursors, a stream begins with new events in all partitions. (L36)"""
    event_type = stage.add(partitions=2)
    stage.publish(event_type, "a", "b")
    opening = stage.streams.open(event_type.name, StreamParameters(), None, ANN)
    assert {partition: str(start) for partition, start in opening.starts.items()} == {
        "0": "001-0001-000000000000000001",
        "1": "001-0001--1",
    }


def test_a_handler_holds_nothing_for_an_answer_that_is_never_served(stage):
    """The answer of the route can be dropped: nothing is read or watched before it is served."""
    event_type = stage.add()
    (route,) = routes(stage.streams, lambda _: None)
    request = Request(
        method="GET", path="/", path_parameters={"name": event_type.name}, subject=ANN, declared=route.parameters
    )
    assert route.handler(request).status == 200
    assert stage.log.watchers == 0
    assert stage.log.reads == []


# While it is open


def test_a_block_is_noticed(stage):
    """A block ends a stream without a message, whichever process set it. (L59)"""

    async def scenario() -> None:
        event_type, outlet = stage.add(), RecordingOutlet()
        stage.serve(event_type, outlet)
        await asyncio.sleep(0)
        stage.blacklist.block(BlockedKind.CONSUMER_EVENT_TYPE, event_type.name)
        await stage.wait_for_end()
        assert outlet.text == ""

    run_with(stage, scenario())


def test_only_who_lost_permission_is_refused(stage):
    """If READ is taken from one subject, its streams end with a Problem, and others continue. (L60)"""

    async def scenario() -> None:
        event_type = stage.add(authorization=authorization_of_readers("ann", "bob"))
        anns, bobs = RecordingOutlet(), RecordingOutlet()
        stage.serve(event_type, anns, ANN, stream_limit=1)
        stage.serve(event_type, bobs, BOB)
        await asyncio.sleep(0)
        stage.event_types.replace(event_type, replace(event_type, authorization=authorization_of_readers("ann")))
        await bobs.until(lambda text: text.endswith("}\n"))
        assert problem(bobs) == (403, f"Access on READ event-type:{event_type.name} denied")
        stage.publish(event_type, "a")
        await stage.wait_for_end()
        assert '"events":["a"]' in anns.text

    run_with(stage, scenario())


def test_changes_by_others_are_found(stage):
    """A stream also notices changes by another process, somewhat later. (L60)"""

    async def scenario() -> None:
        event_type, outlet = stage.add(authorization=authorization_of_readers("ann", "bob")), RecordingOutlet()
        stage.serve(event_type, outlet, BOB)
        await asyncio.sleep(0)
        stage.elsewhere.replace(event_type, replace(event_type, authorization=authorization_of_readers("ann")))
        await stage.wait_for_end()
        assert problem(outlet)[0] == 403

    run_with(stage, scenario())


def test_a_deletion_by_others_is_found(stage):
    """The stream of an event type that another process has deleted ends with a Problem. (L61)"""

    async def scenario() -> None:
        event_type, outlet = stage.add(), RecordingOutlet()
        stage.serve(event_type, outlet)
        await asyncio.sleep(0)
        stage.elsewhere.remove(event_type)
        await stage.wait_for_end()
        assert problem(outlet) == (503, f'EventType "{event_type.name}" does not exist.')

    run_with(stage, scenario())


def test_a_new_event_type_of_the_same_name_has_its_own_streams(stage):
    """An event type that is created under the name of a deleted one is a different event type, with its own streams.
    (L61)"""

    async def scenario() -> None:
        old, outlet, other = stage.add(), RecordingOutlet(), RecordingOutlet()
        stage.serve(old, outlet)
        await asyncio.sleep(0)
        stage.elsewhere.remove(old)
        new = stage.add(name=old.name, id="another")
        stage.serve(new, other, stream_limit=1)
        await outlet.until(lambda text: text.endswith("}\n"))
        assert problem(outlet)[0] == 503
        stage.publish(new, "a")
        await stage.wait_for_end()
        assert '"events":["a"]' in other.text

    run_with(stage, scenario())


def test_a_registry_that_does_not_answer_ends_nothing(stage, monkeypatch):
    """A check that fails is repeated, and streams continue meanwhile."""

    async def scenario() -> None:
        event_type, outlet = stage.add(), RecordingOutlet()
        asked = threading.Event()

        def raise_unavailable(*_: object) -> None:
            asked.set()
            raise Unavailable("away")

        stage.serve(event_type, outlet, stream_limit=1)
        monkeypatch.setattr(stage.permissions, "require_consumer", raise_unavailable)
        await asyncio.to_thread(asked.wait, PATIENCE)
        monkeypatch.undo()
        stage.publish(event_type, "a")
        await stage.wait_for_end()
        assert '"events":["a"]' in outlet.text

    run_with(stage, scenario())


class MonitorRounds(list[object]):
    """Records the rounds of monitoring: one entry whenever a task begins to check all streams."""

    async def wait_for_more(self, count: int) -> None:
        """Wait until a number of further rounds have begun, and the last but one has ended."""
        count += len(self)
        await wait_on_loop(lambda: len(self) >= count)


def counted_rounds(stage, monkeypatch) -> MonitorRounds:
    rounds = MonitorRounds()
    look = stage.access.refresh_features
    monkeypatch.setattr(stage.access, "refresh_features", lambda: rounds.append(1) or look())
    return rounds


def test_one_look_serves_all_streams_of_a_subject(stage, monkeypatch):
    """However many streams a subject has over an event type, one check serves all of them."""

    async def scenario() -> None:
        event_type = stage.add()
        asked = []
        verdict = stage.access.access_change_for
        monkeypatch.setattr(stage.access, "access_change_for", lambda *each: asked.append(each) or verdict(*each))
        rounds = counted_rounds(stage, monkeypatch)
        for _ in range(50):
            stage.serve(event_type, RecordingOutlet())
        await rounds.wait_for_more(3)
        assert 0 < len(asked) <= len(rounds)

    run_with(stage, scenario())


def test_a_change_is_reported_once(stage, monkeypatch):
    """Streams are notified of a change once, not in every later round. (L60)"""

    async def scenario() -> None:
        event_type, outlet = stage.add(), RecordingOutlet()
        told = []
        monkeypatch.setattr(LowLevelDriver, "update_event_type", lambda _, changed: told.append(changed))
        stage.serve(event_type, outlet)
        await asyncio.sleep(0)
        stage.elsewhere.replace(event_type, replace(event_type, owning_application="other"))
        await wait_on_loop(lambda: told)
        await counted_rounds(stage, monkeypatch).wait_for_more(3)
        assert len(told) == 1

    run_with(stage, scenario())


def test_looking_after_streams_ends_with_the_last_one(stage):
    """Monitoring ends with the last stream."""

    async def scenario() -> None:
        outlet = RecordingOutlet()
        stage.serve(stage.add(), outlet)
        await asyncio.sleep(0)
        outlet.leaving.set()
        await stage.wait_for_end()
        assert stage.streams._monitor._task is None

    run_with(stage, scenario())


def test_a_stream_that_is_cut_off_gives_everything_back(stage):
    """A stream whose task is cancelled releases all its resources."""

    async def scenario() -> None:
        stage.serve(stage.add(), RecordingOutlet())
        await asyncio.sleep(0.01)
        stage.running[0].cancel()
        with suppress(asyncio.CancelledError):
            await stage.running[0]
        assert stage.log.watchers == 0
        assert stage.streams._monitor._readers == {}

    run_with(stage, scenario())


# Single events


OWNED = Record(b'"bobs"', owner=Attribute("user", "bob"))


@pytest.mark.parametrize(
    ("subject", "on", "expected"),
    [
        (ANN, True, ["a", "b"]),
        (BOB, True, ["a", "bobs", "b"]),
        (Subject("archiver", frozenset({Attribute("user", "the-archiver")})), True, ["a", "bobs", "b"]),
        (Subject("anybody", trusted=True), True, ["a", "bobs", "b"]),
        (ANN, False, ["a", "bobs", "b"]),
    ],
)
def test_events_of_others_are_not_shown(stage, subject, on, expected):
    """While the feature is on, only clients that may read the events of an owner see these events. (L58)"""

    async def scenario() -> None:
        event_type, outlet = stage.add(), RecordingOutlet()
        stage.features.switch(Feature.EVENT_OWNER_SELECTOR_AUTHZ, on=on)
        stage.publish(event_type, "a", OWNED, Record(None, key="k"), Record(b"1", directed_to="x"), "b")
        stage.serve(event_type, outlet, subject, stream_limit=len(expected))
        await stage.wait_for_end()
        assert [orjson.loads(line)["events"][0] for line in outlet.text.splitlines()] == expected

    run_with(stage, scenario())


def test_an_owner_rule_that_is_switched_on_holds_for_open_streams(stage):
    """A stream that was opened before the feature was switched on hides events of other owners from then on. (L58)"""

    async def scenario() -> None:
        event_type, outlet = stage.add(), RecordingOutlet()
        stage.serve(event_type, outlet, stream_limit=2)
        stage.publish(event_type, OWNED)
        await outlet.lines(1)
        stage.features.switch(Feature.EVENT_OWNER_SELECTOR_AUTHZ, on=True)
        await wait_on_loop(lambda: stage.access._owners_matter)
        stage.publish(event_type, OWNED, "a")
        await stage.wait_for_end()
        assert [orjson.loads(line)["events"] for line in outlet.text.splitlines()] == [["bobs"], ["a"]]

    run_with(stage, scenario())
