"""The receivers of docs/push.md work with a broker that delivers to them."""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import httpx
import pytest

from infra.laptop.kinesis_local import find_node
from nakadi.local import Broker
from nakadi.model.sink import TARGET_MEMBERS, SinkDraft
from tests.support.api import a_business_definition, a_definition
from tests.support.aws_targets import a_client, a_function, aws_over_http, receive_all
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE, until
from tests.support.receiver import ON_LOOPBACK, delivering_quickly
from tests.support.subscriptions import publish

PAGE = (ROOT / "docs/push.md").read_text()
SERVE = 'HTTPServer(("", 8000), Receiver).serve_forever()'


@pytest.fixture(scope="module", autouse=True)
def speed_up_deliveries() -> Iterator[None]:
    with delivering_quickly():
        yield


def test_the_receiver_gets_what_the_request_subscribes_to():
    """The page's program verifies and handles the events, and rejects requests from others. (X3)"""
    code, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [body] = re.findall(r"/subscriptions -d '(.*?)'", PAGE, re.DOTALL)
    assert SERVE in code
    handled: list[object] = []
    names: dict[str, object] = {"handle": handled.append}
    exec(compile(code.replace(SERVE, 'server = HTTPServer(("127.0.0.1", 0), Receiver)'), "docs/push.md", "exec"), names)
    server = names["server"]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/hook"
    try:
        with Broker(**ON_LOOPBACK) as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
            api.post("/event-types", json=a_definition(name="order.placed")).raise_for_status()
            request = json.loads(body.replace("https://shipping.example.org/hook", url)) | {"read_from": "begin"}
            answer = api.post("/subscriptions", json=request)
            assert answer.status_code == 201, answer.text
            names["SECRET"] = answer.json()["sink"]["secret"]
            publish(api, "order.placed", 2)
            until(lambda: handled == [{"n": 0}, {"n": 1}])
    finally:
        server.shutdown()
        server.server_close()


NODE_MODULES = ROOT / ".cache" / "node" / "node_modules"


@pytest.mark.skipif(not (NODE_MODULES / "standardwebhooks").exists(), reason="`make test` installs node's packages")
def test_the_receiver_in_javascript_verifies_deliveries(tmp_path):
    """A JavaScript library for webhooks accepts the signature of a delivery, even of a body that is not ASCII. (X3)"""
    [code] = re.findall(r"```js\n(.*?)```", PAGE, re.DOTALL)
    listen = "listen(8000)"
    assert listen in code
    handle = "const handle = (event) => console.log(JSON.stringify(event));\n"
    told = 'listen(0, "127.0.0.1", function () { console.log(this.address().port); })'
    (tmp_path / "receiver.mjs").write_text(handle + code.replace(listen, told))
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    secret = "whsec_" + "c2VjcmV0" * 4
    command, printed = [find_node(), "receiver.mjs"], tmp_path / "printed"
    with (
        printed.open("w") as output,
        subprocess.Popen(command, cwd=tmp_path, env={"SECRET": secret}, stdout=output) as process,
        Broker(**ON_LOOPBACK) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        try:
            until(lambda: printed.read_text().endswith("\n"))
            url = f"http://127.0.0.1:{printed.read_text().strip()}/hook"
            api.post("/event-types", json=a_definition(name="order.placed")).raise_for_status()
            sink = {"type": "http", "url": url, "secret": secret}
            request = {
                "owning_application": "shop",
                "event_types": ["order.placed"],
                "read_from": "begin",
                "sink": sink,
            }
            api.post("/subscriptions", json=request).raise_for_status()
            events = [{"n": 1, "name": "Zoë Müller"}, {"n": 2, "name": "\u2028 𝄞"}]
            api.post("/event-types/order.placed/events", json=events).raise_for_status()
            until(lambda: [json.loads(line) for line in printed.read_text().split("\n")[1:-1]] == events)
        finally:
            process.kill()


def test_the_function_reports_the_event_that_it_fails_at():
    """The broker sends an event again until the function has handled it, and then the events after it. (X39, X40)"""
    _, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    sink, _ = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
    handled: list[int] = []
    failures = iter([ValueError("cannot read it")])

    def handle(event):
        if event["n"] == 2 and (failure := next(failures, None)):
            raise failure
        handled.append(event["n"])

    names: dict[str, object] = {"handle": handle}
    exec(compile(code, "docs/push.md", "exec"), names)
    business = a_business_definition(name="order.placed")
    with a_function(names["ship"]) as arn, a_broker_with(sink | {"function": arn}, business) as api:
        metadata = {"occurred_at": "2026-11-21T12:00:00Z"}
        events = [{"n": n, "metadata": {**metadata, "eid": str(uuid4())}} for n in range(4)]
        api.post("/event-types/order.placed/events", json=events).raise_for_status()
        until(lambda: handled[-1:] == [3])
    assert handled == [0, 1, 2, 3]
    assert next(failures, None) is None


def test_the_queue_gets_events_in_order():
    """The queue of the page's example gets all events in order, even if it is created only after deliveries have
    failed. (X42, X43)
    """
    _, sink = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
    found: list[dict[str, object]] = []
    with aws_over_http() as endpoint, a_client("sqs", endpoint) as sqs, a_broker_with(sink) as api:
        publish(api, "order.placed", 3)
        [subscription] = api.get("/subscriptions").json()["items"]
        sink_path = f"/subscriptions/{subscription['id']}/sink"
        until(lambda: "last_failure" in api.get(sink_path).json().get("deliveries", {}))
        url = sqs.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        until(lambda: found.extend(receive_all(sqs, url)) or len(found) == 3)
        assert [json.loads(each["Body"]) for each in found] == [{"n": 0}, {"n": 1}, {"n": 2}]


@contextmanager
def a_broker_with(sink, definition=None):
    """A client of a broker that delivers the events of `order.placed` to a sink in AWS."""
    with (
        Broker(sink_targets=("arn:aws:*:123456789012:*",)) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        api.post("/event-types", json=definition or a_definition(name="order.placed")).raise_for_status()
        request = {"owning_application": "shop", "event_types": ["order.placed"], "read_from": "begin", "sink": sink}
        answer = api.post("/subscriptions", json=request)
        assert answer.status_code == 201, answer.text
        assert "secret" not in answer.json()["sink"]
        yield api


def test_the_page_names_every_field_of_a_sink():
    kind, _, *others = SinkDraft.__struct_fields__
    table = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", PAGE, re.MULTILINE)
    assert re.findall(r"\w+", " ".join(table)) == [kind, *TARGET_MEMBERS.values(), *others]
