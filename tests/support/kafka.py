"""A Kafka for the tests of a process: its own, or the one at `KAFKA=host:9092`. `make test` installs Kafka if it can,
and runs a part of the tests that need it: the contract of the event log, a restart, and the end-to-end tests that are
selected here. They all run in one process, so one Kafka serves them. Without Kafka, these tests are skipped, and say
why. `make test-engines` runs all.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from uuid import uuid4

import pytest

from infra.laptop import kafka_local
from infra.laptop.kinesis_local import free_port
from infra.laptop.processes import stop_process
from tests.support.group_ends import end_with_group
from tests.support.other_engines import OTHER_ENGINES_WANTED as OTHERS_WANTED

OWN_ADDRESS = os.environ.get("KAFKA", "")

ALL = OTHERS_WANTED or bool(OWN_ADDRESS)

missing_requirement = cache(kafka_local.missing_requirement)

NOT_IN_EVERY_RUN = pytest.mark.skipif(not ALL, reason="`make test-engines` runs all that is tested on Kafka")

# These test publishing, streaming, subscribing and committing where logs may differ: where partitions begin and end,
# when readers see their events, and how batches and timelines reach them.
SELECTED_TESTS = frozenset(
    {
        "test_a_batch_follows_a_new_timeline",
        "test_a_batch_that_is_sent_again_is_stored_once",
        "test_a_client_that_comes_back_misses_nothing",
        "test_a_partition_changes_hands_when_it_is_committed",
        "test_a_projection_sends_what_is_read",
        "test_a_second_stream_gets_its_share",
        "test_each_content_mode_publishes_what_comes_back",
        "test_a_stream_can_begin_at_a_point_in_time",
        "test_a_stream_follows_into_a_new_timeline",
        "test_business_events_come_out_enriched",
        "test_deleting_the_event_type_ends_the_stream_with_a_problem",
        "test_distances_across_timelines",
        "test_every_event_is_judged_once_over_timelines",
        "test_events_are_counted_from_the_committed_offset",
        "test_events_arrive_in_order_while_they_are_published",
        "test_new_partitions_are_consumed_from_their_beginning",
        "test_no_line_of_a_stream_can_be_torn",
        "test_no_line_of_a_subscription_can_be_torn",
        "test_subscriptions_that_were_never_streamed_get_their_offsets",
        "test_the_next_stream_goes_on",
        "test_time_leads_to_what_was_published_since",
        "test_tombstones_are_not_delivered",
        "test_what_was_published_is_counted_at_once",
    }
)


def url() -> str:
    """The URL of an event log with no topics yet: its prefix sets its topics apart from all others."""
    return f"kafka://{servers()}?prefix={uuid4().hex[:12]}-"


def servers() -> str:
    """The address of the Kafka. Without one, skip the test, unless all tests with Kafka were requested."""
    if OWN_ADDRESS:
        return OWN_ADDRESS
    if (missing := missing_requirement()) and not ALL:
        pytest.skip(f"no Kafka: {missing}")
    return _start_server()


@cache
def _start_server() -> str:
    folder = tempfile.TemporaryDirectory(prefix="kafka-")
    end_with_group(folder.cleanup)
    end_with_group(_start_server.cache_clear)
    broker = kafka_local.start_reliably(folder.name)
    end_with_group(partial(stop_process, broker.process))
    return broker.address


# A killed server may not come back before the cluster misses it, so the cluster misses it soon.
FAST_FAILURE_SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


class OwnServer:
    """A server that a test may kill, pause, and start again."""

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        if (lacking := kafka_local.missing_requirement()) and (OWN_ADDRESS or not ALL):
            pytest.skip(f"no Kafka that a test may end: {lacking}")
        self._folder = folder
        self._settings = settings
        self._server = kafka_local.start(folder, port=port, settings=settings, prefix=prefix)

    @property
    def address(self) -> str:
        return self._server.address

    def wait(self) -> None:
        kafka_local.wait_until_ready(self._server)

    def kill(self) -> None:
        self._server.process.kill()
        self._server.process.wait()

    def pause(self) -> None:
        """Stop the process: its connections stay open, but it answers nothing."""
        self._server.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._server.process.send_signal(signal.SIGCONT)

    def start(self) -> None:
        """Start the server at its earlier address, with its earlier data."""
        port = int(self.address.rpartition(":")[2])
        settings = {**(self._settings or {}), **FAST_FAILURE_SETTINGS}
        self._server = kafka_local.start(self._folder, port=port, settings=settings)
        self.wait()

    def has_ended(self) -> bool:
        return self._server.process.poll() is not None

    def end(self) -> None:
        if not self.has_ended():
            self.go_on()
        stop_process(self._server.process)


@contextmanager
def a_server(folder: Path, prefix: Sequence[str] = ()) -> Iterator[OwnServer]:
    server = OwnServer(folder, prefix=prefix)
    try:
        server.wait()
        yield server
    finally:
        server.end()


@contextmanager
def three_servers(folder: Path) -> Iterator[Mapping[int, OwnServer]]:
    """A cluster in which a write is durable when two of three copies have it. The first server is the controller."""
    controller, servers = free_port(), {}
    try:
        for node in (1, 2, 3):
            port = free_port()
            here = f"PLAINTEXT://127.0.0.1:{port}"
            also = f",CONTROLLER://127.0.0.1:{controller}" if node == 1 else ""
            settings = {
                "node.id": str(node),
                "process.roles": "broker,controller" if node == 1 else "broker",
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": here + also,
                "advertised.listeners": here,
                "min.insync.replicas": "2",
                **FAST_FAILURE_SETTINGS,
                "replica.lag.time.max.ms": "3000",
            }
            servers[node] = OwnServer(folder / str(node), port, settings)
        for server in servers.values():
            server.wait()
        yield servers
    finally:
        for server in servers.values():
            server.end()
