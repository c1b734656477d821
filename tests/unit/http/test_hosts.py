"""The names under which a broker without authentication is served on its own machine."""

import json

import pytest

from nakadi.http.hosts import MAX_REMEMBERED_HOSTS, ServedHosts, choose_served_hosts, host_name
from nakadi.local import Broker
from nakadi.model.outcomes import BadSetting
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def broker():
    with Broker(hosts=("Broker.Example.", "other.example")) as broker:
        yield broker


class HostWire(Wire):
    """A connection that sends only the given lines, and adds no `Host` header of its own."""

    def ask(self, *lines, body=b""):
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return self.response()


@pytest.fixture
def wire(broker):
    with HostWire(broker.url) as wire:
        yield wire


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080", "[0:0:0:0:0:0:0:1]", "::1"),
        *("LOCALHOST", "LocalHost.:80", "localhost.", "broker.example", "BROKER.example.:99", "other.example:1"),
    ],
)
def test_names_of_the_machine_are_served(wire, host):
    """Without authentication, the broker is served under the machine's names and the configured ones, with any port, in
    any case, with or without a final dot. (R290)"""
    for _ in range(2):
        status, _, _ = wire.ask("GET /health HTTP/1.1", f"Host: {host}")
        assert status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "localhost.evil.example", "evil-localhost", "localhost:evil", ""),
        *("127.0.0.2", "10.0.0.1", "[::2]", "[localhost]", "[::1", "::1]", "1:2:3", "localhost..", "."),
    ],
)
@pytest.mark.parametrize("target", ["/event-types", "/console", "/health"])
def test_other_names_are_refused(wire, host, target):
    """A request for another name, such as that of a page whose name resolves to this machine, gets 421 and a message
    with the remedy, on any path; then the connection is closed. (R290)"""
    status, headers, body = wire.ask(f"GET {target} HTTP/1.1", f"Host: {host}")
    problem = json.loads(body)
    assert (status, headers["content-type"]) == (421, "application/problem+json")
    assert (problem["status"], problem["title"]) == (421, "Misdirected Request")
    assert "NAKADI_HOSTS" in problem["detail"]
    assert (headers["connection"], wire.socket.recv(1)) == ("close", b"")


def test_the_body_of_such_a_request_is_not_waited_for(wire):
    """A request for another name is refused before its body arrives, even if the client asks whether to send it.
    (R290)
    """
    head = ("POST /event-types HTTP/1.1", "Host: evil.example", "Content-Length: 1000000", "Expect: 100-continue")
    assert wire.ask(*head)[0] == 421


def test_requests_before_such_a_request_are_answered(wire):
    """If several requests are sent at once, the server answers those before the refused one, and then closes the
    connection. (R290)"""
    good = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    wire.socket.sendall(good * 2 + good.replace(b"localhost", b"evil.example") + good)
    assert [wire.response()[0] for _ in range(2)] == [200, 200]
    assert wire.socket.recv(1) == b""


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost:1/health", "localhost", 200),
        ("http://user@LOCALHOST/health", "localhost", 200),
        ("http://evil.example/health", "localhost", 421),
        ("http://localhost/health", "evil.example", 421),
        ("http://localhost@evil.example/health", "localhost", 421),
    ],
)
def test_a_target_may_name_the_host_too(wire, target, host, status):
    """If the target contains a host, both names have to be served. (R290)"""
    assert wire.ask(f"GET {target} HTTP/1.1", f"Host: {host}")[0] == status


def test_old_clients_need_not_name_a_host(wire):
    """An HTTP/1.0 request without a host does not come from a browser, and is served. (R290)"""
    assert wire.ask("GET /health HTTP/1.0")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Origin: http://evil.example"], 403),
        (["Origin: null"], 403),
        (["Origin: http://localhost.evil.example:8080"], 403),
        (["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"], 403),
        (["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Origin: https://evil.example"], 403),
        (["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"], 404),
        (["Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Origin: http://localhost:5173"], 404),
        (["Origin: https://broker.example"], 404),
        (["Origin: http://[::1]:8080"], 404),
        ([], 404),
    ],
)
def test_pages_of_other_hosts_cannot_use_it(wire, headers, status):
    """Requests that browsers send for a page of another host without a preflight request, such as a form that
    publishes, are refused; pages under the broker's names may send them. (R291)
    """
    head = ["POST /event-types/unknown/events HTTP/1.1", "Host: localhost", "Content-Type: text/plain", *headers]
    found, answered, body = wire.ask(*head, "Content-Length: 2", body=b"[]")
    assert (found, answered["content-type"]) == (status, "application/problem+json")
    assert ("NAKADI_HOSTS" in json.loads(body)["detail"]) == (status == 403)


def test_the_bound_address_is_served():
    """A broker that listens on an address of the machine other than 127.0.0.1 is served under that address. (R290)"""
    try:
        with Broker(host="127.0.0.2") as broker, HostWire(broker.url) as wire:
            asked = [
                wire.ask("GET /health HTTP/1.1", f"Host: {host}")[0] for host in ("127.0.0.2:1", "localhost", "e.x")
            ]
    except OSError:
        pytest.skip("this system has one address alone")
    assert asked == [200, 200, 421]


def test_others_are_not_restricted():
    """A broker that other machines can reach, that requires tokens, or whose setting is `*` serves every name.
    (R290)"""
    assert choose_served_hosts("0.0.0.0", is_authenticated=False, names=()) is None
    assert choose_served_hosts("::", is_authenticated=False, names=()) is None
    assert choose_served_hosts("127.0.0.1", is_authenticated=True, names=()) is None
    assert choose_served_hosts("127.0.0.1", is_authenticated=False, names=("a.example", "*")) is None
    assert choose_served_hosts("::1", is_authenticated=False, names=()) is not None


def test_what_is_no_name_is_refused_at_the_start():
    """The message quotes a setting that is not a host name."""
    with pytest.raises(BadSetting, match="NAKADI_HOSTS has 'http:"):
        Broker(hosts=("http://a.example",))


def test_spellings_do_not_fill_the_memory():
    """However many spellings clients use, few are cached, and all are served."""
    hosts = ServedHosts(["localhost"])
    for port in range(10 * MAX_REMEMBERED_HOSTS):
        assert hosts.is_served(b"localhost:%d" % port, b"/")
    assert len(hosts._remembered) == MAX_REMEMBERED_HOSTS


def test_names_have_one_spelling():
    """Names are compared without the port, the case and the final dot."""
    assert host_name("A.Example.:80") == "a.example"
    assert host_name("[0::1]:80") == "::1"
    assert (host_name(""), host_name(":80"), host_name("a b:x")) == (None, None, None)
