"""A whole broker inside another program."""

import httpx
import pytest

from nakadi.local import Broker
from tests.support import http

EVENT_TYPE = {
    "name": "hello.world",
    "owning_application": "me",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": "{}"},
}


def names_at(broker):
    """The names of the event types at this address, without the broker's own."""
    found = [each["name"] for each in http.get(f"{broker.url}/event-types").json()]
    return [name for name in found if not name.startswith("nakadi.")]


def test_a_broker_lives_as_long_as_its_block():
    """Within the block, there is a broker at its address; after the block, there is none."""
    with Broker() as broker:
        assert http.post(f"{broker.url}/event-types", json=EVENT_TYPE).status_code == 201
        assert names_at(broker) == ["hello.world"]

    with pytest.raises(httpx.ConnectError):
        http.get(broker.url)


def test_two_brokers_know_nothing_of_each_other():
    """Several brokers may run at once, each with its own port and its own memory."""
    with Broker() as first, Broker() as second:
        http.post(f"{first.url}/event-types", json=EVENT_TYPE)

        assert first.url != second.url
        assert names_at(second) == []


def test_settings_are_keywords():
    """Settings are given as keyword arguments."""
    with Broker(default_partitions=3) as broker:
        http.post(f"{broker.url}/event-types", json=EVENT_TYPE)

        assert len(http.get(f"{broker.url}/event-types/hello.world/partitions").json()) == 3


def test_an_unknown_setting_is_a_mistake():
    """A keyword argument that is not a setting is refused."""
    with pytest.raises(TypeError, match="partitionz"):
        Broker(partitionz=3)


def test_what_a_broker_learned_can_be_kept(tmp_path):
    """With a file for its registry and log, a broker keeps its data for the next start."""
    url = f"sqlite:///{tmp_path / 'nakadi.db'}"
    with Broker(registry=url, event_log=url) as broker:
        http.post(f"{broker.url}/event-types", json=EVENT_TYPE)

    with Broker(registry=url, event_log=url) as broker:
        assert names_at(broker) == ["hello.world"]


def test_a_port_in_use_leaves_nothing_open(tmp_path):
    """A broker that cannot get its port fails, and the data file is free for the next broker."""
    url = f"sqlite:///{tmp_path / 'nakadi.db'}"
    with Broker() as broker:
        port = int(broker.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            Broker(port=port, registry=url, event_log=url)

    with Broker(port=port, registry=url, event_log=url) as again:
        assert http.get(f"{again.url}/health").text == "OK"
