"""The addresses that deliveries may go to."""

import pytest

from nakadi.delivery.addresses import parse_address_rules
from nakadi.model.outcomes import BadSetting

REFUSED = (
    *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "239.1.1.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
    # Addresses of IPv4 inside IPv6: mapped, compatible, NAT64, 6to4 and Teredo.
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::7f00:1", "::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a00:1::1", "2001:0:0:0:0:0:80ff:fffe"),
    *("localhost", "", "1.2.3", "0x7f.1", "2130706433"),
)


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_inside_are_refused(address):
    """Private, loopback, link-local, metadata and multicast addresses are refused, in every form. (X21)"""
    assert not parse_address_rules(()).allows(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_addresses_of_the_internet_are_allowed(address):
    assert parse_address_rules(()).allows(address)


def test_a_setting_allows_networks():
    """The setting allows only addresses of the networks that it names, even when another address embeds them. (X21)"""
    rules = parse_address_rules(("10.1.0.0/16", "fd00::/8", "::1/128"))
    assert all(map(rules.allows, ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "fd00::1", "::1")))
    assert not any(map(rules.allows, ("10.2.0.1", "::ffff:10.2.0.1", "127.0.0.1", "fe80::1")))


def test_a_network_that_is_none_stops_the_start():
    with pytest.raises(BadSetting, match="NAKADI_SINK_NETWORKS"):
        parse_address_rules(("10.1.0.0/16", "here"))
