"""Variables that look like settings but are not."""

import logging
import re
from pathlib import Path

import pytest

from nakadi.app.settings import Settings, known_variables, read_settings, warnings_of_unknown_variables
from tests.support.logs import records_of

ROOT = Path(__file__).parents[3]
READERS = (
    *("layers/nakadi", "services", "functions", "glue_jobs", "nakadi_cli", "nakadi_cdk", "infra", "scripts"),
    *("benchmarks", "console/src", "console/vite.config.ts", "Makefile", "hatch_build.py"),
)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NAKADI_MAX_BACH_EVENTS", "NAKADI_MAX_BATCH_EVENTS"),
        ("NAKADI_CONSOL", "NAKADI_CONSOLE"),
        ("NAKADI_TOKENS", "NAKADI_TOKEN"),
        ("nakadi_hash_salt", "NAKADI_HASH_SALT"),
        ("NAKADI_ARCHIVE_AFTER_MS", "NAKADI_ARCHIVE"),
    ],
)
def test_a_misspelled_setting_is_logged_with_the_nearest_one(caplog, name, meant):
    """A variable that only resembles a setting has no effect, and the log names the setting that may be meant. The log
    does not contain the value, which may be a secret."""
    with caplog.at_level(logging.WARNING):
        assert read_settings({name: "secret"}) == Settings()
    [message] = [each.getMessage() for each in records_of("nakadi.app.settings", caplog)]
    assert message.startswith(f"{name} is not a setting")
    assert meant in message
    assert "secret" not in message


def test_a_name_like_no_other_is_logged_too():
    """If no setting has a similar name, the message refers to the list of all settings."""
    [message] = warnings_of_unknown_variables(["NAKADI_XYZZY_PLUGH"])
    assert "docs/settings.md" in message


def test_what_means_something_is_not_logged():
    """The check ignores settings, variables of the command line and of other programs, and variables that Kubernetes
    sets for a service called nakadi."""
    kubernetes = ("NAKADI_PORT", "NAKADI_SERVICE_HOST", "NAKADI_SERVICE_PORT_HTTP", "NAKADI_PORT_8080_TCP_ADDR")
    names = ["PATH", "NAKADI", "NAKADI_AUTH", "NAKADI_URL", "NAKADI_CONSOLE", "NAKADI_HASH_SALT", *kubernetes]
    assert list(warnings_of_unknown_variables(names)) == []


def test_every_variable_that_is_read_is_known():
    """No part of the repository reads a variable about which a broker would warn."""
    found = set()
    for place in READERS:
        path = ROOT / place
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file() and file.suffix in (".py", ".ts", ".tsx", ".mjs", "") and "__pycache__" not in file.parts:
                found |= set(re.findall(r"(?<![A-Z_])NAKADI_[A-Z][A-Z_]*[A-Z]", file.read_text(errors="ignore")))
    assert {"NAKADI_CONFIG", "NAKADI_CONSOLE", "NAKADI_URL"} <= found
    assert found - known_variables() == set()
