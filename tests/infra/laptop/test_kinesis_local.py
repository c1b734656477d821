"""Chooses ports for the programs that this program starts."""

import socket

from infra.laptop import kinesis_local


def test_a_port_is_given_once(monkeypatch):
    """A port is given only once, even before its server listens."""
    given = kinesis_local.free_port()
    numbers = iter([(given - 10_000) // 2] * 3)
    chance = kinesis_local.secrets.randbelow
    monkeypatch.setattr(kinesis_local.secrets, "randbelow", lambda most: next(numbers, None) or chance(most))

    other = kinesis_local.free_port()

    assert next(numbers, None) is None
    assert other != given
    with socket.socket() as server:
        server.bind(("127.0.0.1", given))
