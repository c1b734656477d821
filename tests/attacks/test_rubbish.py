"""Sends bytes that are not an HTTP request, or that are almost one."""

import random

from tests.support.attacked import choose_repetitions

WORDS = (
    *(b"GET", b"POST", b"PUT", b"CONNECT", b"BREW", b" ", b"  ", b"/", b"/event-types", b"*", b"HTTP/1.1", b"HTTP/1.0"),
    *(b"HTTP/9.9", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"Host: x", b"Content-Length: ", b"Transfer-Encoding: chunked"),
    *(b"chunked", b"5", b"-1", b"0x10", b"\x00", b"\xff\xfe", b"{}", b"[]", b'{"a":', b"0\r\n\r\n", b"a" * 5000),
    *(b"Expect: 100-continue", b"Upgrade: h2c", b"Connection: Upgrade", b"X-Nakadi-Cursors: ", b"%00", b"%zz"),
)


def test_rubbish_is_answered_or_the_connection_ends(broker):
    """The broker answers rubbish with no 5xx status other than 501, and afterwards it answers other clients."""
    dice = random.Random(8)  # the same rubbish in every run
    for _ in range(choose_repetitions(300, 5_000)):
        rubbish = b"".join(dice.choice(WORDS) for _ in range(dice.randint(1, 20)))
        with broker.wire() as wire:
            answers = wire.answers(rubbish)

        assert all(status < 500 or status == 501 for status in answers), rubbish

    with broker.wire() as wire:
        assert wire.send("GET /health HTTP/1.1").response()[0] == 200
