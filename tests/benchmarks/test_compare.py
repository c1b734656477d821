"""Two brokers are held against each other."""

import httpx
import pytest

from benchmarks.compare import HIGHER, LOWER, PARTS, Broker, Figure, compare, compared, is_loopback
from nakadi import local


@pytest.fixture
def brokers():
    with local.Broker() as first, local.Broker() as second:
        yield Broker(first.url), Broker(second.url)


def test_every_part_is_measured_and_nothing_is_left(brokers):
    """Each part gives figures of both brokers, and the event types and subscriptions made for it are removed."""
    rows = list(compare(*brokers, list(PARTS), rounds=1, seconds=0.02))

    assert {row.name.partition(":")[0].partition(",")[0] for row in rows} == {
        "publish",
        "one low-level stream",
        "subscription",
        "200 idle streams",
        "delivery at 50/s",
    }
    assert all(row.first > 0 and row.second > 0 for row in rows)
    for each in brokers:
        names = [found["name"] for found in httpx.get(f"{each.url}/event-types").json()]
        assert not [name for name in names if name.startswith("compare.")]
        assert httpx.get(f"{each.url}/subscriptions").json()["items"] == []


def test_above_one_the_first_broker_is_better():
    """A ratio is turned round where less is better, and is formed in each round before the median is taken."""
    rates = [(Figure(200, HIGHER), Figure(100, HIGHER)), (Figure(30, HIGHER), Figure(10, HIGHER))]
    delays = [(Figure(1, LOWER), Figure(4, LOWER))]

    assert compared("rate", rates).ratios == (2.5, 2, 3)
    assert compared("delay", delays).ratios == (4, 4, 4)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080", True),
        ("http://localhost", True),
        ("http://10.0.0.1:8080", False),
        ("http://events.example.org", False),
        ("http://localhost.example.org", False),
    ],
)
def test_brokers_elsewhere_are_found_out(url, loopback):
    """A load test goes to this machine unless it is asked to go elsewhere."""
    assert is_loopback(url) is loopback
