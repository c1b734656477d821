"""How a cluster is reached: the URL and its file, and which parts of them appear in logs."""

import logging

import pytest

from nakadi.engines.kafka.client import ClusterAddress, new_admin_client, new_consumer, new_producer
from tests.support.patience import until

SECRET = "never/to+be+seen"  # not a real certificate


@pytest.fixture
def address(tmp_path):
    """An address whose user, password and certificate are in a file."""
    file = tmp_path / "kafka.properties"
    file.write_text(
        "# how to log in\n\nsecurity.protocol = sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.username=ann\n"
        f"sasl.password={SECRET}\nssl.key.password={SECRET}==\ndebug=conf\n"
    )
    return ClusterAddress.parse(f"kafka://127.0.0.1:9?prefix=n-&properties={file}")


def test_settings_of_the_library_stand_in_a_file(address):
    """Comments and empty lines are ignored; a value is everything after the first equals sign."""
    settings = address.client_settings()

    assert settings["security.protocol"] == "sasl_plaintext"
    assert settings["sasl.password"] == SECRET
    assert settings["ssl.key.password"] == f"{SECRET}=="
    assert settings["bootstrap.servers"] == "127.0.0.1:9"


@pytest.mark.parametrize("make", [new_admin_client, new_consumer, new_producer])
def test_what_is_secret_is_not_logged(address, make, caplog):
    """Secrets appear neither with an address nor in the library's log, even if it logs all of its settings."""
    caplog.set_level(logging.DEBUG, logger="nakadi.kafka")
    client = make(address)

    def settings_are_logged():
        client.poll(0.05)
        return "sasl.password = [redacted]" in caplog.text

    until(settings_are_logged)
    logging.getLogger("nakadi").warning("Cannot reach %s %r", address, address)

    assert "127.0.0.1:9" in caplog.text
    assert SECRET not in caplog.text
    if make is new_consumer:
        client.close()
