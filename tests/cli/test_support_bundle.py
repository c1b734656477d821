"""`nakadi support-bundle`: what it contains, and what it leaves out."""

import io
import json
import os
import stat
import subprocess
import sys
import tarfile

import pytest

from nakadi_cli import support_bundle
from nakadi_cli.redaction import MASK, secret_values, shown_settings, without_secrets

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJlLWJ5dGVz"
SECRETS = (
    "tok-of-the-environment",
    "pw-in-a-url-4711",
    "salt-for-the-hashes",
    "dsn-password-99",
    "words of a basic login",
    "MC4CAQAwBQYDK2VwBCIEIPlanted",
    "wJalrXUtnFEMIplanted",
    "AKIAIOSFODNN7PLANTED",
    "client-secret-in-json",
    "query-token-in-a-path",
    "cookie-of-the-console",
    "secret-within-a-text",
    "bmFrYWRpLXNpbmstc2VjcmV0",
    JWT,
)
"""The secrets that tests put in at least one place each."""

LOG = f"""2026-11-27T06:00:00Z INFO nakadi.access GET /event-types 200
2026-11-27T06:00:01Z DEBUG Authorization: Bearer {JWT}
2026-11-27T06:00:01Z DEBUG {{"authorization": "Basic words of a basic login"}}
2026-11-27T06:00:02Z WARNING postgres://app:pw-in-a-url-4711@db:5432/shop cannot be reached
2026-11-27T06:00:03Z WARNING dsn=host=db password=dsn-password-99 user=app
2026-11-27T06:00:04Z DEBUG -----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIPlanted
-----END PRIVATE KEY-----
2026-11-27T06:00:05Z DEBUG aws_secret_access_key = wJalrXUtnFEMIplanted, id AKIAIOSFODNN7PLANTED
2026-11-27T06:00:06Z DEBUG {{"client_id": "shop", "client_secret": "client-secret-in-json"}}
2026-11-27T06:00:07Z DEBUG GET /stream?access_token=query-token-in-a-path&limit=5
2026-11-27T06:00:08Z DEBUG Set-Cookie: session=cookie-of-the-console; HttpOnly
2026-11-27T06:00:09Z DEBUG sink secret whsec_bmFrYWRpLXNpbmstc2VjcmV0
2026-11-27T06:00:10Z DEBUG again tok-of-the-environment, without a name beside it
{{"message": "{{\\"client_secret\\": \\"secret-within-a-text\\"}}"}}
2026-11-27T06:00:11Z ERROR The archiving of order.placed failed
"""

PLANTED = {
    "NAKADI_TOKEN": "tok-of-the-environment",
    "NAKADI_HASH_SALT": "salt-for-the-hashes",
    "NAKADI_EVENT_LOG": "kafka://app:pw-in-a-url-4711@kafka-1:9092?prefix=nakadi-",
    "NAKADI_RELAY_DSN": "host=db password=dsn-password-99",
    "NAKADI_MAX_PARTITIONS": "12",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIplanted",
}


@pytest.fixture
def planted_secrets(monkeypatch, tmp_path):
    """Put secrets into the environment and into a log, and return the path of the log."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "nakadi.log").write_text(LOG)
    return tmp_path / "nakadi.log"


def read_bundle(file):
    with tarfile.open(file) as archive:
        found = {
            each.name.removeprefix("nakadi-support/"): archive.extractfile(each).read().decode() for each in archive
        }
    assert all(not name.startswith(("/", "..")) for name in found)
    return found


def test_a_bundle_has_what_helps(run, planted_secrets, tmp_path):
    """The bundle has the findings of doctor, metrics, settings, versions and the end of each log, and only its owner
    can read it.
    """
    file = tmp_path / "bundle.tar.gz"
    done = run(
        "support-bundle", "-f", str(file), "--log", str(planted_secrets), "--log", "-", stdin="a line from a journal\n"
    )

    assert done.code == 0, done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    parts = read_bundle(file)
    assert {each["what"] for each in json.loads(parts["doctor.json"])} >= {"reach", "ready", "subscriptions"}
    assert "# TYPE nakadi_http_requests_total counter" in parts["broker/metrics.txt"]
    assert json.loads(parts["settings.json"])["NAKADI_MAX_PARTITIONS"] == "12"
    assert {"nakadi", "python", "system", "packages"} <= set(json.loads(parts["versions.json"]))
    assert "The archiving of order.placed failed" in parts["logs/1-nakadi.log"]
    assert parts["logs/2-standard-input"] == "a line from a journal\n"
    assert {"broker/version.json", "broker/features.json", "broker/storages.json"} <= set(parts)


def test_a_bundle_has_no_secrets(run, planted_secrets, tmp_path):
    """No file of the bundle has a secret, wherever it occurs; the text around it stays."""
    file = tmp_path / "bundle.tar.gz"
    assert run("support-bundle", "-f", str(file), "--log", str(planted_secrets)).code == 0

    parts = read_bundle(file)
    for secret in SECRETS:
        assert [name for name, text in parts.items() if secret in text] == [], secret
    settings = json.loads(parts["settings.json"])
    assert settings["NAKADI_TOKEN"] == settings["NAKADI_HASH_SALT"] == MASK
    assert settings["NAKADI_EVENT_LOG"] == f"kafka://{MASK}@kafka-1:9092?prefix=nakadi-"
    assert "AWS_SECRET_ACCESS_KEY" not in settings
    assert len(parts["logs/1-nakadi.log"].splitlines()) >= 13
    assert "@db:5432/shop cannot be reached" in parts["logs/1-nakadi.log"]


def test_the_token_of_a_context_is_not_in_it(run, broker, tmp_path):
    """The token of a context is removed from the bundled logs, too."""
    assert run("contexts", "set", "here", "--url", broker.url, "--token", "tok-of-a-context").code == 0
    (tmp_path / "log").write_text("called with tok-of-a-context\n")
    file = tmp_path / "bundle.tar.gz"
    assert (
        run("support-bundle", "--context", "here", "-f", str(file), "--log", str(tmp_path / "log"), url=None).code == 0
    )

    assert read_bundle(file)["logs/1-log"] == f"called with {MASK}\n"


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="it asks Linux for the settings of a process")  # noqa: PTH110
def test_the_settings_of_a_process_are_read(run, tmp_path):
    """With the id of a process, the bundle has the settings that it was started with."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={"NAKADI_WORKERS": "7", "NAKADI_TOKEN": "tok-there"},
    ) as process:
        done = run("support-bundle", "-f", str(tmp_path / "bundle"), "--process", str(process.pid))
        process.communicate(b"\n")

    assert done.code == 0, done.err
    settings = json.loads(read_bundle(tmp_path / "bundle")["settings.json"])
    assert (settings["NAKADI_WORKERS"], settings["NAKADI_TOKEN"]) == ("7", MASK)


def test_only_the_end_of_a_long_log_is_taken(run, tmp_path, monkeypatch):
    """The bundle begins with a whole line: the missing beginning of a line might be the name of a secret."""
    monkeypatch.setattr(support_bundle, "_LOG_BYTES", 50)
    (tmp_path / "log").write_text("password=" + "x" * 100 + "cut\nthe last line\n")
    assert run("support-bundle", "-f", str(tmp_path / "bundle"), "--log", str(tmp_path / "log")).code == 0

    assert read_bundle(tmp_path / "bundle")["logs/1-log"] == "the last line\n"


def test_a_bundle_is_made_without_a_broker(run, tmp_path):
    """If no broker answers, the bundle says why, and has the rest."""
    done = run("support-bundle", "-f", str(tmp_path / "bundle"), url="http://127.0.0.1:9")

    assert done.code == 0, done.err
    parts = read_bundle(tmp_path / "bundle")
    assert json.loads(parts["doctor.json"])[0]["state"] == "ill"
    assert "broker/metrics.txt" in json.loads(parts["missing.json"])
    assert "versions.json" in parts


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-f", "there"), "there exists already"),
        (("-f", "nowhere/bundle"), "cannot be written"),
        (("-f", "new", "--log", "missing.log"), "missing.log cannot be read"),
        (("-f", "new", "--process", "4194305"), "cannot be read"),
    ],
)
def test_what_cannot_be_read_or_written_is_refused(run, tmp_path, monkeypatch, arguments, reason):
    """The command names what is wrong, ends with exit code 2, and overwrites nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("mine")
    done = run("support-bundle", *arguments)

    assert (done.code, (tmp_path / "there").read_text()) == (2, "mine")
    assert reason in done.err


@pytest.mark.parametrize(
    "text",
    [
        "The stream 5 of subscription 0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11 ended: its sink failed at an event",
        'nakadi_http_requests_total{operation="publish_events",status="200"} 5.0',
        "GET http://localhost:8080/event-types/order.placed?limit=5",
        '{"partition_key_fields": ["order_id"], "partition": "0"}',
    ],
)
def test_what_is_no_secret_stays(text):
    """Texts without secrets stay unchanged."""
    assert without_secrets(text, secret_values({"NAKADI_TOKEN": "abc"})) == text


def test_settings_of_others_are_not_shown():
    """Only variables of the broker are shown, and an empty secret shows that it is not set."""
    variables = {"HOME": "/root", "NAKADI_TOKEN": "", "NAKADI_ARCHIVE": "s3://bucket"}

    assert shown_settings(variables) == {"NAKADI_ARCHIVE": "s3://bucket", "NAKADI_TOKEN": ""}


def test_a_bundle_is_an_archive_that_other_tools_read(run, tmp_path):
    """The file is an ordinary tar.gz."""
    assert run("support-bundle", "-f", str(tmp_path / "bundle")).code == 0

    with tarfile.open(fileobj=io.BytesIO((tmp_path / "bundle").read_bytes()), mode="r:gz") as archive:
        assert all(each.isreg() and each.mode == 0o600 for each in archive)
