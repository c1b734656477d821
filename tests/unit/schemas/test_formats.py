"""The formats that are checked in events."""

import pytest

from nakadi.schemas.formats import FORMAT_CHECKS, FORMATS_THAT_SPEND_STEPS
from tests.support.patience import measure_cpu

VALID = {
    "date-time": ["2026-11-21T12:00:00Z"],
    "uri": [
        "https://ann@example.org:8080/a/b;c?d=e&f=[g]#h",
        "http://[::1]/",
        "urn:isbn:0451450523",
        "mailto:ann@example.org",
        "file:///etc/hosts",
        "/relative/to/something",
        "a%20b",
        "http://bücher.example/ß",
        "",
    ],
    "email": [
        "ann@example.org",
        "ann.lee+tag@mail.example.co.uk",
        "o'hara@example.org",
        '"a b@c"@example.org',
        "ann@[127.0.0.1]",
        "ann@[IPv6:::1]",
        "ann@bücher.example",
        "ann@example.xn--p1ai",
    ],
    "ipv4": ["0.0.0.0", "192.168.1.255", "::ffff:192.0.2.1"],
    "ipv6": ["::", "::1", "2001:db8::ff00:42:8329", "fe80::1%eth0", "fe80::1%", "::1%a%b", "::1.2.3.4"],
    "hostname": [
        "localhost",
        "www.example.org",
        "www.example.org.",
        "a-b.c1",
        "1.2.a3",
        "a" * 63,
        "bücher.de",
        "例。中国",
    ],
    "iso-4217": ["EUR", "USD", "JPY", "XXX", "DEM"],
    "ISO-4217": ["EUR"],
}

INVALID = {
    "date-time": ["2026-11-21", "now"],
    "uri": [
        "a b",
        "http://",
        "http:",
        ":a",
        "1a:b",
        "a\\b",
        "<a>",
        "a%zz",
        "a%2",
        "a#b#c",
        "a\n",
        "http://[::1",
        "{a}",
    ],
    "email": [
        "ann",
        "@example.org",
        "ann@",
        "ann@localhost",
        "ann@-a.org",
        "ann@example.o",
        "ann@example.1x",
        ".ann@example.org",
        "ann..lee@example.org",
        "ann lee@example.org",
        "ann@[300.0.0.1]",
        f"{'a' * 65}@example.org",
        f"ann@{'a.' * 200}org",
        "ann@example.org\n",
    ],
    "ipv4": ["1.2.3", "1.2.3.4.5", "256.0.0.1", "01.2.3.4", "::1", "1.2.3.4%eth0", "1.2.3.4\n", "\u0661.2.3.4", ""],
    "ipv6": ["1.2.3.4", ":::", "12345::", "1::2::3", "::ffff:192.0.2.1", "::ffff:c000:201", "%eth0", "::1 ", ""],
    "hostname": [
        "",
        "-a",
        "a-",
        "a..b",
        ".a",
        "a..",
        "a_b",
        "a b",
        "1",
        "1.2.3.4",
        "a.1",
        "a" * 64,
        "a." * 130 + "a",
        "a\n",
    ],
    "iso-4217": ["eur", "EURO", "EU", "978", "€", "", "ZZZ"],
    "ISO-4217": ["eur"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in VALID.items() for text in texts])
def test_texts_in_the_format(name, text):
    """Eight formats are checked, and strings in the format pass. (P70, R181)"""
    assert FORMAT_CHECKS[name](text) is None


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in INVALID.items() for text in texts])
def test_texts_that_are_not(name, text):
    """The check reports a string that does not have the format. (P70, R181)"""
    assert FORMAT_CHECKS[name](text) is not None


def test_formats_that_are_checked():
    """Other formats, such as uuid and date, are only documentation. (R181)"""
    assert set(FORMAT_CHECKS) == set(VALID) == set(INVALID)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("uri", "[a b] is not a valid URI"),
        ("email", "[a b] is not a valid email address"),
        ("ipv4", "[a b] is not a valid ipv4 address"),
        ("ipv6", "[a b] is not a valid ipv6 address"),
        ("hostname", "[a b] is not a valid hostname"),
        ("iso-4217", "[a b] is not a valid alphabetic ISO 4217 currency code"),
    ],
)
def test_the_message_quotes_the_string_and_names_the_format(name, words):
    """The message quotes the string and names the format. (P70)"""
    assert FORMAT_CHECKS[name]("a b") == words


@pytest.mark.parametrize("name", FORMAT_CHECKS)
@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, "a." * 500_000, "1:" * 500_000, "%41" * 300_000 + "%", "@" * 1_000_000]
)
def test_long_texts(name, text):
    """Even a long string takes little time to check. (R181)"""
    assert measure_cpu(lambda: FORMAT_CHECKS[name](text)) < (5000 if name in FORMATS_THAT_SPEND_STEPS else 500)
