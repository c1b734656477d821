"""The streaming service in a process, as its container starts it, and as a load balancer sees it."""

import json
import signal
import ssl
from urllib.request import urlopen

import httpx
import pytest

from nakadi.app.shutdown import SignalHandler
from nakadi.local import Broker
from nakadi.model.outcomes import BadSetting
from services.streaming import program
from tests.support import http
from tests.support.open_stream import OpenStream
from tests.support.patience import PATIENCE
from tests.support.signalled import end_at_each_step
from tests.support.streaming_service import launch_service, run_service, variables
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

NAME = "measured.thing"
EVENT_TYPE = {
    "name": NAME,
    "owning_application": "me",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": "{}"},
}
FROM_THE_BEGINNING = {"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": "BEGIN"}])}


@pytest.fixture
def shared_environment(tmp_path):
    """The settings of the stores that the broker and the service share."""
    url = f"sqlite:///{tmp_path / 'nakadi.db'}"
    return {"registry": url, "event_log": url}


@pytest.fixture
def broker(shared_environment):
    """A broker that replaces the functions on AWS: it registers event types, and publishes."""
    with Broker(**shared_environment) as broker:
        assert http.post(f"{broker.url}/event-types", json=EVENT_TYPE).status_code == 201
        yield broker


def publish_numbers(broker, *numbers):
    answer = http.post(f"{broker.url}/event-types/{NAME}/events", json=[{"n": number} for number in numbers])
    assert answer.status_code == 200


def numbers_in(line):
    return [event["n"] for event in line.get("events", [])]


def test_a_load_balancer_sees_that_it_is_well(shared_environment):
    """The health endpoint answers without a token, and SIGTERM ends an idle service without a traceback."""
    with run_service(variables(shared_environment)) as service:
        answer = http.get(f"{service.url}/health")

        assert (answer.status_code, answer.text) == (200, "OK")
        assert service.end() == (0, "")


def test_the_service_can_use_tls_to_the_load_balancer(shared_environment):
    """With `--tls`, the service uses a certificate that it signs itself, which a load balancer accepts."""
    unproven = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unproven.check_hostname, unproven.verify_mode = False, ssl.CERT_NONE

    with run_service(variables(shared_environment), "--tls") as service:
        address = service.url.removeprefix("http://")
        with urlopen(f"https://{address}/health", context=unproven, timeout=PATIENCE) as answer:
            assert (answer.status, answer.read()) == (200, b"OK")
        with pytest.raises(httpx.TransportError):
            http.get(f"{service.url}/health")
        assert service.end() == (0, "")


def test_connections_of_the_load_balancer_stay_open_behind_streams(shared_environment, monkeypatch):
    """The service keeps connections open after a stream. Otherwise, the load balancer might be sending a request over a
    connection while the service closes it, and would answer 502.
    """
    options = {}

    def refuse_to_serve(*_, **given):
        options.update(given)
        raise BadSetting("not now")

    monkeypatch.setattr(program, "Server", refuse_to_serve)
    for name, text in variables(shared_environment).items():
        monkeypatch.setenv(name, text)

    assert program.main(["--port=0"], signals=SignalHandler()) == program.CANNOT_START
    assert options["closes_after_streams"] is False


@pytest.mark.long
def test_the_service_ends_cleanly_at_each_step_of_its_start(shared_environment):
    """Ctrl-C before the first line ends the service with exit code 130. SIGTERM at any time, and Ctrl-C after that
    line, end it with 0. It never prints a traceback.
    """
    for end in end_at_each_step("services.streaming", "--port=0", environment=variables(shared_environment)):
        ready = "Streaming on port" in end.said
        assert (end.code, end.complained) == (130 if end.how == signal.SIGINT and not ready else 0, ""), end


def test_events_come_as_they_are_published(broker, shared_environment):
    """The service streams events that another process has published before or publishes meanwhile."""
    publish_numbers(broker, 1, 2)
    with (
        run_service(variables(shared_environment)) as service,
        OpenStream(service.url, f"/event-types/{NAME}/events?batch_limit=2", FROM_THE_BEGINNING) as stream,
    ):
        before = json.loads(stream.line())
        publish_numbers(broker, 3, 4)
        after = json.loads(stream.line())

    assert stream.status == 200
    assert [numbers_in(before), numbers_in(after)] == [[1, 2], [3, 4]]


def test_streams_are_packed_here(broker, shared_environment):
    """The service compresses streams, because a gateway does not compress a streamed response."""
    publish_numbers(broker, 1)
    with (
        run_service(variables(shared_environment)) as service,
        OpenStream(
            service.url, f"/event-types/{NAME}/events", {**FROM_THE_BEGINNING, "Accept-Encoding": "gzip"}
        ) as stream,
    ):
        assert stream.headers["content-encoding"] == "gzip"
        assert numbers_in(json.loads(stream.line())) == [1]


@pytest.mark.usefixtures("broker")
def test_a_stream_ends_before_its_gateway_ends_it(shared_environment):
    """A setting limits the duration of a stream, which ends properly at that limit."""
    with (
        run_service(variables(shared_environment, longest_stream_seconds="1")) as service,
        OpenStream(service.url, f"/event-types/{NAME}/events?stream_timeout=600&batch_flush_timeout=600") as stream,
    ):
        stream.rest()

        assert stream.ended


@pytest.mark.usefixtures("broker")
def test_a_stream_is_never_silent_for_too_long(shared_environment):
    """Whatever flush timeout a client chooses, a keep-alive line comes before a gateway gives up."""
    with (
        run_service(variables(shared_environment, longest_silence_seconds="1")) as service,
        OpenStream(service.url, f"/event-types/{NAME}/events?batch_flush_timeout=300") as stream,
    ):
        assert numbers_in(json.loads(stream.line())) == []


def test_a_stop_ends_open_streams_well(broker, shared_environment):
    """On SIGTERM, streams send what they have buffered and end properly, and the process ends long before it would
    be killed.
    """
    publish_numbers(broker, 1, 2, 3)
    with (
        run_service(variables(shared_environment)) as service,
        OpenStream(
            service.url, f"/event-types/{NAME}/events?batch_limit=2&batch_flush_timeout=60", FROM_THE_BEGINNING
        ) as stream,
    ):
        assert numbers_in(json.loads(stream.line())) == [1, 2]
        service.process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in stream.rest().splitlines()]
        code, said = service.process.wait(timeout=PATIENCE), service.process.stderr.read()

        assert stream.ended
        assert [number for line in lines for number in numbers_in(line)] == [3]
        assert (code, said) == (0, "")


@pytest.mark.usefixtures("broker")
def test_tokens_are_checked_here_too(shared_environment, tmp_path):
    """A client that bypasses the gateway's authorizer still needs a valid token."""
    issuer = Issuer(tmp_path)
    asked = {"auth": "jwt", "auth_jwks": str(issuer.path), "auth_issuer": ISSUER, "auth_audience": AUDIENCE}
    with run_service(variables(shared_environment, **asked)) as service:
        target = f"/event-types/{NAME}/events"
        without = http.get(service.url + target)
        with OpenStream(service.url, f"{target}?stream_timeout=1&batch_flush_timeout=1", issuer.bearer()) as stream:
            assert stream.status == 200

    assert without.status_code == 401


def test_events_and_commits_can_come_directly(shared_environment, broker, tmp_path):
    """With `--direct`, the service also accepts events and commits from clients whose token allows them."""
    shared_environment = {**shared_environment, "coordination": shared_environment["registry"]}
    issuer = Issuer(tmp_path)
    asked = {"auth": "jwt", "auth_jwks": str(issuer.path), "auth_issuer": ISSUER, "auth_audience": AUDIENCE}
    wanted = {"owning_application": "me", "event_types": [NAME], "read_from": "begin"}
    subscription = http.post(f"{broker.url}/subscriptions", json=wanted).json()["id"]
    with run_service(variables(shared_environment, **asked), "--direct") as service:
        target = f"{service.url}/event-types/{NAME}/events"
        assert http.post(target, json=[{"n": 1}]).status_code == 401
        assert http.post(target, json=[{"n": 1}], headers=issuer.bearer(scope="uid")).status_code == 403
        assert http.post(target, json=[{"n": 1}], headers=issuer.bearer()).status_code == 200
        path = f"/subscriptions/{subscription}"
        with OpenStream(service.url, f"{path}/events?batch_limit=1", issuer.bearer()) as stream:
            batch = json.loads(stream.line())
            assert numbers_in(batch) == [1]
            headers = {**issuer.bearer(), "X-Nakadi-StreamId": stream.headers["x-nakadi-streamid"]}
            items = {"items": [batch["cursor"]]}
            assert http.post(f"{service.url}{path}/cursors", json=items).status_code == 401
            assert http.post(f"{service.url}{path}/cursors", json=items, headers=headers).status_code == 204


@pytest.mark.usefixtures("broker")
def test_events_are_not_taken_in_unless_it_is_asked_to(shared_environment):
    """A service that is only behind the gateway serves only streams."""
    with run_service(variables(shared_environment)) as service:
        assert http.post(f"{service.url}/event-types/{NAME}/events", json=[{"n": 1}]).status_code == 405


def test_nothing_else_is_served(shared_environment):
    """The service does not serve event types, which is the task of the functions."""
    with run_service(variables(shared_environment)) as service:
        assert http.get(f"{service.url}/event-types").status_code == 404


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"NAKADI_REGISTRY": "paper:///"}, "paper:///"),
        ({"NAKADI_COORDINATION": "stone:///"}, "stone:///"),
        ({"NAKADI_AUTH": "jwt"}, "NAKADI_AUTH_JWKS"),
        ({"NAKADI_LONGEST_STREAM_SECONDS": "long"}, "NAKADI_LONGEST_STREAM_SECONDS"),
    ],
)
def test_the_service_says_why_it_cannot_start(environment, named):
    """If the service cannot start, a sentence on standard error names the fault."""
    with launch_service(environment) as process:
        _, said = process.communicate(timeout=PATIENCE)

    assert process.returncode == 1
    assert said.startswith("The streaming service cannot start.")
    assert named in said


@pytest.mark.usefixtures("broker")
def test_the_name_of_a_stage_is_no_part_of_a_path(shared_environment):
    """A gateway may put its stage in front of a path; the stream is found with and without it."""
    target = f"/event-types/{NAME}/events?stream_timeout=1&batch_flush_timeout=1"
    with run_service(variables(shared_environment), "--prefix=/api") as service:
        answers = [http.get(f"{service.url}{prefix}{target}") for prefix in ("", "/api", "/ape")]

    assert [answer.status_code for answer in answers] == [200, 200, 404]
