"""The examples of docs/cloudevents.md work."""

import re
import shlex

import httpx
import pytest

from nakadi.local import Broker
from tests.support.api import a_definition
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE

PAGE = (ROOT / "docs/cloudevents.md").read_text()


class NoMoreEvents(Exception):
    """Raised by a handler that has seen everything."""


def test_what_is_published_is_read():
    """Each request on the page stores a CloudEvent, and the consumer on the page gets all of them. (E1, E20)"""
    requests = [each for each in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if " -d " in each]
    [code] = re.findall(r"<!-- run: read -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(code, "docs/cloudevents.md", "exec"), names)
    seen = []

    def handle(event):
        seen.append((event.get_id(), event.get_data()))
        if len(seen) == len(requests):
            raise NoMoreEvents

    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        api.post("/event-types", json=a_definition(name="order.placed")).raise_for_status()
        body = {"owning_application": "a", "event_types": ["order.placed"], "read_from": "begin"}
        subscription = api.post("/subscriptions", json=body).json()["id"]
        for request in requests:
            send_as_curl_does(api, request)
        with pytest.raises(NoMoreEvents):
            names["consume"](broker.url, subscription, handle)

    assert seen == [(f"A-{number}", {"order_number": f"471{number}"}) for number in (1, 2, 3)]


def send_as_curl_does(api, command):
    """Send the request of a curl command with -H and -d."""
    program, address, *options = shlex.split(command.replace("\\\n", " "))
    assert program == "curl"
    pairs = list(zip(options[::2], options[1::2], strict=True))
    headers = dict(value.split(": ", 1) for option, value in pairs if option == "-H")
    [body] = [value for option, value in pairs if option == "-d"]
    answer = api.post("/" + address.partition("/")[2], content=body, headers=headers)
    assert answer.status_code == 200, answer.text
