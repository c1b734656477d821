"""Queries over HTTP: `POST /queries`, and the processes that answer them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from nakadi.local import Broker
from nakadi.queries import processes
from tests.support.api import problem
from tests.support.patience import PATIENCE, until
from tests.support.tokens import Issuer

ENDLESS = "select max(hash(a.range + b.range)) from range(10000000000) a, range(1000000) b"

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked at in /proc")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(issuer) -> Iterator[Broker]:
    """A broker with tokens, and room for a single query."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAKADI_HASH_SALT", "a-secret-of-the-broker")
        with Broker(queries=1, **issuer.settings) as broker:
            yield broker


@pytest.fixture
def ann(broker, issuer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.url, timeout=PATIENCE, headers=issuer.bearer("ann")) as client:
        yield client


def children() -> list[int]:
    """The processes of queries that this process has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and "nakadi_sql" in (place / "cmdline").read_text():
                found.append(int(place.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_query_that_is_none_is_refused(ann):
    """An invalid query gets 422, with a sentence about the fault as its detail; a body without a query is refused
    before that. (Q6, Q11)
    """
    detail = problem(ann.post("/queries", json={"sql": "from read_csv('/etc/passwd')"}), 422)
    assert detail == "The function read_csv cannot be used in FROM: a query reads event types."
    assert problem(ann.post("/queries", json={}), 422) == 'Field "sql" must not be null\n'
    assert problem(ann.post("/queries", json={"sql": "x" * 1_000_000}), 413)


def test_the_end_of_its_client_ends_a_query(broker, issuer, ann):
    """There is room for one query at a time, and the broker answers everything else meanwhile. When the query's client
    leaves, the query's process ends. The process shows no token to other processes, and gets none of the broker's
    environment variables. (Q13, Q14, Q15)
    """
    token = issuer.bearer("ann")["Authorization"]
    with httpx.Client(base_url=broker.url, timeout=PATIENCE, headers={"Authorization": token}) as leaving:
        ended = threading.Event()

        def ask() -> None:
            with closing(leaving), pytest.raises(httpx.HTTPError):
                leaving.post("/queries", json={"sql": ENDLESS}, timeout=httpx.Timeout(PATIENCE, read=PATIENCE))
            ended.set()

        asking = threading.Thread(target=ask)
        asking.start()
        until(children)
        [child] = children()
        refused = ann.post("/queries", json={"sql": "select 1"})
        assert problem(refused, 503)
        assert refused.headers["retry-after"] == "1"
        assert ann.get("/event-types").status_code == 200
        seen = Path(f"/proc/{child}/cmdline").read_bytes() + Path(f"/proc/{child}/environ").read_bytes()
        assert token.removeprefix("Bearer ").encode() not in seen
        assert b"NAKADI_" not in seen
        _abort(leaving)
        until(lambda: not children())
        asking.join(PATIENCE)
        assert ended.is_set()
    until(lambda: ann.post("/queries", json={"sql": "select 1"}).status_code == 200)


def _abort(client: httpx.Client) -> None:
    """Close the connection while the answer is awaited."""
    [connection] = client._transport._pool.connections
    connection._connection._network_stream._sock.shutdown(2)


def test_a_process_that_does_not_end_is_killed(monkeypatch, ann):
    """If a query's process does not end in time, the broker kills it. (Q13)"""
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", -29.0)
    assert problem(ann.post("/queries", json={"sql": ENDLESS}), 422) == "The query took more than 30 seconds."
    assert not children()


def test_a_query_has_its_memory(ann):
    """Memory that the database does not count is limited as well: the process cannot hold a string of 3 GB. (Q13)"""
    assert "512 MB" in problem(ann.post("/queries", json={"sql": "select repeat('x', 3000000000)"}), 422)


def test_a_missing_package_is_named(monkeypatch, ann):
    """Without the packages of queries, the answer names the package to install. (Q16)"""
    monkeypatch.setattr(processes, "REQUIRED_PACKAGES", ("no_such_package",))
    detail = problem(ann.post("/queries", json={"sql": "select 1"}), 501)
    assert detail == "no_such_package is missing: pip install 'nakadi-serverless[sql]'"


def test_a_broker_may_offer_no_queries():
    """If queries are switched off, the answer says so, and the console has no page for them. (Q16)"""
    with Broker(queries=0) as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        assert problem(client.post("/queries", json={"sql": "select 1"}), 501) == "This broker does not offer queries"
        assert client.get("/console/config.json").json()["queries"] is False
