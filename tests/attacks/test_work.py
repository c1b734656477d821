"""Despite unbounded work or a silent registry, other clients are served, and the process ends in time."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import httpx

from tests.support.attacked import AttackedBroker, choose_repetitions, start_attacked_broker
from tests.support.patience import until
from tests.support.processes import ENVIRONMENT
from tests.support.wire import Wire

BATCHES = 64
STREAMS = 150


def a_schema(levels):
    """A schema in which each level doubles the number of checks of a value."""
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/definitions/d{n - 1}"}] * 2} for n in range(1, levels)}
    return {"definitions": {"d0": {"type": "object"}, **definitions}, "$ref": f"#/definitions/d{levels - 1}"}


def create_event_type(broker, name, schema):
    definition = {
        "name": name,
        "owning_application": "attacks",
        "category": "undefined",
        "schema": {"type": "json_schema", "schema": json.dumps(schema)},
    }
    return httpx.post(f"{broker.url}/event-types", json=definition, timeout=60)


def a_wire(broker):
    wire = Wire(broker.url)
    wire.socket.settimeout(60)
    return wire


def post_events(wire, name, events):
    body = json.dumps(events).encode()
    head = f"POST /event-types/{name}/events HTTP/1.1"
    return wire.send(head, "Content-Type: application/json", f"Content-Length: {len(body)}", body=body)


def health_status(broker):
    with a_wire(broker) as wire:
        return wire.send("GET /health HTTP/1.1").response()[0]


def worst_batches(broker, stack):
    """Send a batch for each thread that works on batches, each needing more work than the broker permits for a batch,
    and return the connections.
    """
    wires = [stack.enter_context(a_wire(broker)) for _ in range(BATCHES)]
    for wire in wires:
        post_events(wire, "the.worst", [{}] * 1_300)
    return wires


def test_the_worst_batches_hold_up_no_other_client_and_not_the_end():
    """While the broker works on the worst batches, it answers health checks and small batches; SIGTERM ends the process
    cleanly.
    """
    with start_attacked_broker() as broker, ExitStack() as stack:
        assert create_event_type(broker, "too.far", a_schema(22)).status_code == 422
        assert create_event_type(broker, "the.worst", a_schema(12)).status_code == 201
        assert create_event_type(broker, "small", {}).status_code == 201

        wires = worst_batches(broker, stack)
        for _ in range(choose_repetitions(10, 100)):
            assert health_status(broker) == 200
            with a_wire(broker) as small:
                assert post_events(small, "small", [{"a": 1}]).response()[0] == 200
        assert {wire.response()[0] for wire in wires} <= {200, 422, 503}

        worst_batches(broker, stack)
        assert health_status(broker) == 200
        assert broker.end(signal.SIGTERM) == 0
        assert "cut off" not in broker.read_log()
        assert broker.tracebacks() == []


def test_a_client_that_reads_nothing_does_not_hold_up_the_end():
    """At shutdown, the broker cuts off streams whose clients read nothing, and the process ends cleanly."""
    with start_attacked_broker() as broker, ExitStack() as stack:
        assert create_event_type(broker, "large", {}).status_code == 201
        for _ in range(20):
            assert (
                httpx.post(
                    f"{broker.url}/event-types/large/events", json=[{"a": "x" * 400_000}], timeout=60
                ).status_code
                == 200
            )
        for _ in range(5):
            wire = stack.enter_context(a_wire(broker))
            cursors = 'X-Nakadi-Cursors: [{"partition":"0","offset":"BEGIN"}]'
            wire.send("GET /event-types/large/events HTTP/1.1", cursors)
            assert wire.head()[0] == 200

        assert broker.end(signal.SIGTERM) == 0
        assert broker.tracebacks() == []


# The broker with a registry that stops answering as soon as a file exists, and with a shorter deadline for shutdown.
PROGRAM = """
import sys, threading
from pathlib import Path
from nakadi.local import program, serving
from nakadi.app.shutdown import exit_process
from nakadi.app.shutdown import SignalHandler
from nakadi.engines.memory.registry import MemoryRegistry

silent, answered = Path(sys.argv.pop(1)), MemoryRegistry.get

def get(self, kind, key):
    if silent.exists():
        threading.Event().wait()
    return answered(self, kind, key)

MemoryRegistry.get = get
program.PROGRAM_EXIT_TIMEOUT_SECONDS, serving.DRAIN_TIMEOUT_SECONDS = 3.0, 0.5
signals = SignalHandler()
signals.install()
exit_process(program.main(signals=signals))
"""


@contextmanager
def silenceable_broker(folder):
    """A broker, and a function that silences its registry."""
    silent, log = folder / "silent", folder / "log"
    command = [sys.executable, "-c", PROGRAM, str(silent), "--port=0", "--engine=memory"]
    with log.open("w") as errors:
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield AttackedBroker(process, log), silent.touch
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_registry_that_does_not_answer_takes_neither_health_nor_open_streams_nor_the_end(tmp_path):
    """While many requests wait for a silent registry, the process is healthy but not ready, open streams continue, and
    SIGTERM ends the process.
    """
    with silenceable_broker(tmp_path) as (broker, silence), ExitStack() as stack:
        assert create_event_type(broker, "kept", {}).status_code == 201
        with a_wire(broker) as wire:
            assert wire.send("GET /ready HTTP/1.1").response()[0] == 200
        followed = stack.enter_context(a_wire(broker))
        followed.send("GET /event-types/kept/events?batch_flush_timeout=1 HTTP/1.1")
        assert followed.head()[0] == 200

        silence()
        for _ in range(STREAMS):
            stack.enter_context(a_wire(broker)).send("GET /event-types/kept/events HTTP/1.1")
        assert [health_status(broker) for _ in range(20)] == [200] * 20
        until(lambda: unreadiness_problem(broker))
        assert health_status(broker) == 200
        for _ in range(2):
            assert followed.until(b"}}\n")

        broker.process.send_signal(signal.SIGTERM)
        broker.process.wait(60)
        assert "Still at work: " in broker.read_log()
        assert "nakadi-streams in EventTypes.find" in broker.read_log()


def unreadiness_problem(broker):
    with a_wire(broker) as wire:
        status, _, body = wire.send("GET /ready HTTP/1.1").response()
    return status == 503 and json.loads(body)["detail"].startswith("The registry ")
