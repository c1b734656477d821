"""Tests the console in a real browser. The tests of each `test_*.py` are in a script with the same name, for node's
test runner, which controls the browser. This module starts a broker for each script, and turns its results into
results of pytest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from nakadi.local import Broker
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "console"
BUILT = CACHE / "built"

DEAD_LETTERS = {
    "name": "nakadi.dead.letter.queue",
    "owning_application": "stups_nakadi",
    "category": "business",
    "enrichment_strategies": ["metadata_enrichment"],
    "schema": {"type": "json_schema", "schema": "{}"},
}
"""The event type for dead letters, which each broker of these tests has."""

# The deadline for all tests of a script together, on a busy machine.
SECONDS = 600


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate one test for each `test("…")` in the module's script; its name is the sentence."""
    if "sentence" in metafunc.fixturenames:
        script = Path(metafunc.module.__file__).with_suffix(".mjs").read_text("utf-8")
        metafunc.parametrize("sentence", re.findall(r'^test\("([^"]+)"', script, re.MULTILINE))


def _missing_parts() -> str | None:
    """What is missing on this machine for tests in a browser."""
    if not (BUILT / "index.html").exists() or not (ROOT / "console/node_modules/playwright-core").exists():
        return "the console is not built with what its tests need: `make console` does it, and says why if it cannot"
    named = [CACHE / "browser" / "chromium", *(Path(os.environ[name]) for name in ("CHROMIUM",) if name in os.environ)]
    if any(each.exists() for each in named) or any(
        map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    ):
        return None
    return "there is no browser: `make console` unpacks one on Linux, CHROMIUM=/path/to/chromium names another"


@pytest.fixture(scope="module")
def settings() -> Mapping[str, object]:
    """The settings of the broker; modules may override this fixture."""
    return {}


@pytest.fixture(scope="module")
def broker(settings: Mapping[str, object]) -> Iterator[Broker]:
    with Broker(console=str(BUILT), **settings) as made:
        yield made


@pytest.fixture(scope="module")
def token() -> str:
    return ""


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest, settings: Mapping[str, object]) -> str:
    """The address of the broker: the tests' own, or the one that CONSOLE_BROKER names, such as one that `make run
    ENGINE=aws-local` has started. The tests empty that broker for each module. A module that needs other settings
    always has its own broker.
    """
    missing = _missing_parts()
    if missing:
        pytest.skip(missing)
    named = os.environ.get("CONSOLE_BROKER", "")
    if named and not settings:
        _delete_all_resources(named)
        return named
    made: Broker = request.getfixturevalue("broker")
    return made.url


def _delete_all_resources(url: str) -> None:
    """Remove existing resources, such as those that other modules have left; subscriptions first, because they
    prevent the deletion of event types.
    """
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        while found := client.get("/subscriptions", params={"limit": 1000}).raise_for_status().json()["items"]:
            for each in found:
                client.delete(f"/subscriptions/{each['id']}").raise_for_status()
        for each in client.get("/event-types").raise_for_status().json():
            client.delete(f"/event-types/{each['name']}").raise_for_status()
        client.post("/event-types", json=DEAD_LETTERS).raise_for_status()
        client.put("/storages/default/default").raise_for_status()
        for each in client.get("/storages").raise_for_status().json():
            if each["id"] != "default":
                client.delete(f"/storages/{each['id']}").raise_for_status()


@pytest.fixture(scope="session")
def browser() -> Iterator[str]:
    """The address of the browser that all scripts share."""
    command = [CACHE / "bin" / "node", HERE / "serve_browser.mjs"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=plain_environment(), stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the browser does not start"
        yield address
        # This closes the standard input of the browser's process, which then ends.
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def failures_by_sentence(request: pytest.FixtureRequest, url: str, token: str) -> Mapping[str, str]:
    """For each test of the module's script, by its sentence, the reason of its failure, or an empty text. Under an
    empty sentence, the whole output.
    """
    script = Path(request.module.__file__).with_suffix(".mjs")
    node = CACHE / "bin" / "node"
    command = [node, "--test", "--test-reporter", HERE / "reporter.mjs", script]
    # `url` has to come first, because it skips the tests if there is no browser.
    browser: str = request.getfixturevalue("browser")
    environ = plain_environment(BROKER=url, TOKEN=token, BROWSER=browser, PICTURES=os.environ.get("PICTURES", ""))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {each["name"]: "" if each["passed"] else each["why"] for each in told}
    return {"": f"{done.stdout}\n{done.stderr}", **found}


@pytest.fixture
def failure(failures_by_sentence: Mapping[str, str], sentence: str) -> str:
    """Why the test with this sentence failed in the browser, or an empty text."""
    return failures_by_sentence.get(sentence, failures_by_sentence[""])
