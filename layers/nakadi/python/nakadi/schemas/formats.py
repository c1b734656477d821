"""The formats that events are held to: for each name, what is wrong with a text, or None.

Other names (`uuid`, `date`, `time`, …) are documentation. Every check takes time in proportion to the text at most.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping

from nakadi.schemas import timestamps

# Letters of all scripts, between dots that may be those of other scripts as well. The last label is no number.
_DOT = r"[.\u3002\uff0e\uff61]"
_SYMBOL = r"(?:[A-Za-z0-9]|[^\x00-\x7f\u3002\uff0e\uff61])"
_LABEL = rf"{_SYMBOL}(?:(?:{_SYMBOL}|-){{0,61}}{_SYMBOL})?"
_HOSTNAME = re.compile(rf"(?:{_LABEL}{_DOT})*(?![0-9]){_LABEL}{_DOT}?").fullmatch
_LONGEST_HOSTNAME = 253

# A mailbox: words of ordinary characters between single dots, or anything in quotes.
_WORD = r"[^\s\x00-\x1f\x7f()<>@,;:\\\".\[\]]+"
_LOCAL_PART = re.compile(rf"{_WORD}(?:\.{_WORD})*|\"(?:[^\"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*\"").fullmatch
_LETTERS = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_MAIL_DOMAIN = re.compile(rf"{_LETTERS}(?:\.{_LETTERS})*\.(?:[^\W\d_]{{2,63}}|xn--[A-Za-z0-9-]{{1,59}})").fullmatch
_LONGEST_LOCAL_PART = 64
_LONGEST_MAIL_ADDRESS = 320

# RFC 3986, with letters of all scripts, and with references relative to an unknown base.
_ESCAPED = "%[0-9A-Fa-f]{2}"
_OTHER = r"[^\x00-\x7f\x80-\x9f\s]"
_IN_PATH = rf"(?:[A-Za-z0-9_.!~*'();:@&=+$,/-]|{_ESCAPED}|{_OTHER})"
_IN_QUERY = rf"(?:[A-Za-z0-9_.!~*'();:@&=+$,/?\[\]-]|{_ESCAPED}|{_OTHER})"
_AUTHORITY = rf"(?:(?:[A-Za-z0-9_.!~*'();:@&=+$,-]|{_ESCAPED}|{_OTHER})*(?:\[[0-9A-Fa-f:.]+\](?::[0-9]*)?)?)"
_URI = re.compile(
    rf"(?:[A-Za-z][A-Za-z0-9+.-]*:(?=[^#])|(?![^/?#]*:))"
    rf"(?://(?=[^?#]){_AUTHORITY}(?=[/?#]|\Z)|(?!//)){_IN_PATH}*(?:\?{_IN_QUERY}*)?(?:#{_IN_QUERY}*)?"
).fullmatch

# ISO 4217: what is in use, and what was: an event about the past keeps its currency.
CURRENCIES = frozenset(
    """
    AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE
    CHF CHW CLF CLP CNY COP COU CRC CUC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ
    GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD
    MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG
    QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS
    UAH UGX USD USN UYI UYU UYW UZS VED VES VND VUV WST XAF XAG XAU XBA XBB XBC XBD XCD XCG XDR XOF XPD XPF XPT XSU XTS
    XUA XXX YER ZAR ZMW ZWG
    ADP AFA ALK AOK AON AOR ARA ARP ARY ATS AYM AZM BAD BEC BEF BEL BGJ BGK BGL BOP BRB BRC BRE BRN BRR BUK BYB BYR CHC
    CSD CSJ CSK CYP DDM DEM ECS ECV EEK ESA ESB ESP FIM FRF GEK GHC GHP GNE GNS GQE GRD GWE GWP HRD HRK IEP ILP ILR ISJ
    ITL LAJ LSM LTL LTT LUC LUF LUL LVL LVR MAF MGF MLF MRO MTL MTP MVQ MXP MZE MZM NIC NLG PEH PEI PES PLZ PTE RHD ROK
    ROL RUR SDD SDP SIT SKK SLL SRG STD SUR TJR TMM TPE TRL UAK UGS UGW USS UYN UYP VEB VEF VNC XEU XFO XFU XRE YDD YUD
    YUM YUN ZAL ZMK ZRN ZRZ ZWC ZWD ZWL ZWN ZWR
    """.split()  # noqa: SIM905  # a table reads better than three hundred words in quotes
)


def _uri(text: str) -> str | None:
    return None if _URI(text) else f"[{text}] is not a valid URI"


def _email(text: str) -> str | None:
    return None if _is_mail_address(text) else f"[{text}] is not a valid email address"


def _is_mail_address(text: str) -> bool:
    if len(text) > _LONGEST_MAIL_ADDRESS:
        return False
    local, at, domain = text.rpartition("@")
    if not at or len(local) > _LONGEST_LOCAL_PART or not _LOCAL_PART(local):
        return False
    if domain.startswith("[") and domain.endswith("]"):
        return _is_address(domain[1:-1].removeprefix("IPv6:"))
    return _MAIL_DOMAIN(domain) is not None


def _ipv4(text: str) -> str | None:
    return None if _is_address(text, version=4) else f"[{text}] is not a valid ipv4 address"


def _ipv6(text: str) -> str | None:
    return None if _is_address(text, version=6) else f"[{text}] is not a valid ipv6 address"


def _is_address(text: str, version: int | None = None) -> bool:
    """Addresses of version 6 may have a zone, whatever its name; those that stand for one of version 4 are that one."""
    plain, percent, _ = text.partition("%")
    if len(plain) > len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255"):
        return False
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not percent and version in (None, 4)
    return version in (None, 6 if address.ipv4_mapped is None else 4)


def _hostname(text: str) -> str | None:
    fits = len(text) <= _LONGEST_HOSTNAME and _HOSTNAME(text)
    return None if fits else f"[{text}] is not a valid hostname"


def _currency(text: str) -> str | None:
    return None if text in CURRENCIES else f"[{text}] is not a valid alphabetic ISO 4217 currency code"


FORMATS: Mapping[str, Callable[[str], str | None]] = {
    "date-time": timestamps.problem_with,
    "uri": _uri,
    "email": _email,
    "ipv4": _ipv4,
    "ipv6": _ipv6,
    "hostname": _hostname,
    "iso-4217": _currency,
    "ISO-4217": _currency,
}

# The rest look at a few hundred characters at most.
UNBOUNDED = frozenset({"uri"})
