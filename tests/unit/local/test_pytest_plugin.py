"""The pytest fixture for other projects."""

import subprocess
import sys

from tests.support.patience import PATIENCE
from tests.support.processes import ENVIRONMENT

TEST = """
import json
import urllib.request


def publish_and_ask(url):
    body = json.dumps({
        "name": "hello.world", "owning_application": "me", "category": "undefined",
        "schema": {"type": "json_schema", "schema": "{}"},
    }).encode()
    request = urllib.request.Request(url + "/event-types", body, {"Content-Type": "application/json"})
    assert urllib.request.urlopen(request).status == 201
    found = [each["name"] for each in json.load(urllib.request.urlopen(url + "/event-types"))]
    return [name for name in found if not name.startswith("nakadi.")]


def test_one(nakadi_broker):
    assert publish_and_ask(nakadi_broker.url) == ["hello.world"]


def test_two_has_a_broker_of_its_own(nakadi_broker):
    assert publish_and_ask(nakadi_broker.url) == ["hello.world"]
"""


def test_a_plain_test_file_can_ask_for_a_broker(tmp_path):
    """Any test gets a broker by naming the fixture; nothing else is needed."""
    (tmp_path / "test_shop.py").write_text(TEST)

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "nakadi.local.pytest_plugin", "-W", "error", str(tmp_path)],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout


def test_who_does_not_ask_does_not_pay():
    """Loading the plugin imports nothing of the broker, because every test run of its users loads the plugin."""
    script = (
        "import sys, nakadi.local.pytest_plugin; print(*(name for name in sys.modules if name.startswith('nakadi')))"
    )

    run = subprocess.run(
        [sys.executable, "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=2 * PATIENCE,
    )

    assert set(run.stdout.split()) == {"nakadi", "nakadi.local", "nakadi.local.pytest_plugin"}
