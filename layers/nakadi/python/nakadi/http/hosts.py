"""The names under which a broker without authentication is served on its own machine.

Any web site can point its name to 127.0.0.1 (DNS rebinding). For the browser, the broker then belongs to that site,
whose pages may use the whole API. But the browser sends the name of the site, and the broker rejects requests for names
that are not its own.

Browsers also send some requests of pages of other sites, such as forms, without asking the broker first. They name the
host of the page, and the broker rejects such requests too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from nakadi.http.problem import RequestRefusal
from nakadi.model.outcomes import BadSetting

NAMES_OF_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
EVERY_HOST = "*"

HOST_AND_PORT_PATTERN = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::[0-9]*)?", re.IGNORECASE)

UNSERVED_HOST_REFUSAL = RequestRefusal(
    HTTPStatus.MISDIRECTED_REQUEST,
    "Without authentication the broker is served under the names of this machine alone, such as localhost. To use it "
    "under another name, add that name to NAKADI_HOSTS",
)
OTHER_PAGE_REFUSAL = RequestRefusal(
    HTTPStatus.FORBIDDEN,
    "Without authentication no page of another host can use the broker. To let the pages of a host use it, add the "
    "name of that host to NAKADI_HOSTS",
)
# Clients choose the spelling of host names, and must not fill the memory with them.
MAX_REMEMBERED_HOSTS = 64


class ServedHosts:
    """The host names for which the broker answers requests, regardless of port, case and final dot. Raises `BadSetting`
    for an invalid name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(_require_name(name) for name in names)
        self._remembered: set[bytes] = set()

    def refusal_of(
        self, host: bytes | None, target: bytes, headers: Sequence[tuple[bytes, bytes]]
    ) -> RequestRefusal | None:
        """The reason to refuse a request. `host` is the value of that header; `headers` may be empty if they contain
        neither `Origin` nor `Sec-Fetch-Site`.
        """
        if not self.is_served(host, target):
            return UNSERVED_HOST_REFUSAL
        return OTHER_PAGE_REFUSAL if self.is_from_other_page(headers) else None

    def is_served(self, host: bytes | None, target: bytes) -> bool:
        """Whether a request is for the broker. A request without the header, as HTTP/1.0 allows, is not from a browser.
        If the target also names a host, as for a proxy, that must be one of the served hosts.
        """
        return (host is None or host in self._remembered or self._serves_host(host)) and (
            target[:1] in b"/*" or self._serves_host(_host_in_url(target))
        )

    def is_from_other_page(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether a browser says that a page of another host sends the request. A request by a link that a user follows
        changes nothing, so it does not count.
        """
        if not headers:
            return False
        found = dict(headers)
        if b"origin" in found and not self._serves_host(_host_in_url(found[b"origin"])):
            return True
        return found.get(b"sec-fetch-site") == b"cross-site" and found.get(b"sec-fetch-mode") != b"navigate"

    def _serves_host(self, host: bytes) -> bool:
        if host_name(host.decode("latin-1")) not in self._names:
            return False
        if len(self._remembered) < MAX_REMEMBERED_HOSTS:
            self._remembered.add(host)
        return True


def choose_served_hosts(bound_address: str, *, is_authenticated: bool, names: Iterable[str]) -> ServedHosts | None:
    """The names for a server on this address; None, which means all names, if other machines can reach it or tokens
    protect it.
    """
    names = tuple(names)
    if is_authenticated or EVERY_HOST in names or not ip_address(bound_address.partition("%")[0]).is_loopback:
        return None
    return ServedHosts((*NAMES_OF_THIS_MACHINE, bound_address, *names))


def host_name(host_and_port: str) -> str | None:
    """The name without its port, in a spelling for comparisons; None if the text is not a host name."""
    if host_and_port.count(":") > 1 and "[" not in host_and_port:
        return _address_text(host_and_port)
    found = HOST_AND_PORT_PATTERN.fullmatch(host_and_port)
    if found is None:
        return None
    if found[1]:
        return _address_text(found[1])
    return found[2].lower().removesuffix(".") or None


def _address_text(text: str) -> str | None:
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def _host_in_url(url: bytes) -> bytes:
    try:
        return urlsplit(url).netloc.rpartition(b"@")[2]
    except ValueError:
        return b""


def _require_name(name: str) -> str:
    found = host_name(name)
    if found is None:
        raise BadSetting(f"NAKADI_HOSTS has {name!r}, which is not the name of a host.")
    return found
