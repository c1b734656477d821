"""Decides which addresses may receive deliveries: addresses on the internet, and in networks that a setting allows."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from msgspec import Struct

from nakadi.model.outcomes import BadSetting

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# IPv6 networks whose last 32 bits are the IPv4 address that a gateway sends to.
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
# An older form of IPv6 address that contains an IPv4 address; systems may also send to that IPv4 address.
_IPV4_COMPATIBLE = ipaddress.IPv6Network("::/96")


class AddressRules(Struct, frozen=True):
    """The networks that are allowed besides the internet."""

    allowed: tuple[Network, ...] = ()

    def allows(self, text: str) -> bool:
        """Whether a delivery may go to an address. If the address contains another one, as with NAT64, the rules apply
        to the inner address.
        """
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        return self._is_allowed(_address_inside(address) or address)

    def _is_allowed(self, address: Address) -> bool:
        if any(address.version == network.version and address in network for network in self.allowed):
            return True
        if address.version == 6 and address in _IPV4_COMPATIBLE:
            return False
        return address.is_global and not address.is_multicast


def parse_address_rules(networks: Iterable[str]) -> AddressRules:
    """Raises `BadSetting`."""
    try:
        return AddressRules(tuple(ipaddress.ip_network(each) for each in networks))
    except ValueError as error:
        raise BadSetting(f"NAKADI_SINK_NETWORKS is a list of networks such as 10.1.0.0/16: {error}") from error


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _address_inside(address: Address) -> ipaddress.IPv4Address | None:
    if address.version == 4:
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
