"""The examples of docs/sql.md work, one after the other, on a broker."""

import json
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import httpx
import pytest
from pyarrow import parquet

from nakadi.local import Broker
from nakadi_cli.__main__ import main
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE

PAGE = (ROOT / "docs" / "sql.md").read_text()
COMMANDS = re.findall(r"^nakadi (sql .*)$", PAGE, re.MULTILINE)
[SHOWN] = re.findall(r"```\n(sku.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The data folder of the broker, which the page calls `data`."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def url(folder):
    stores = f"sqlite:///{folder / 'nakadi.db'}"
    with (
        Broker(registry=stores, event_log=stores) as broker,
        httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
    ):
        definition = json.loads((ROOT / "events/event_types/order.placed.json").read_text())
        assert api.post("/event-types", json=definition).status_code == 201
        batch = json.loads((ROOT / "events/batches/order.placed/three-orders.json").read_text())
        assert api.post("/event-types/order.placed/events", json=batch).status_code == 200
        yield broker.url


@pytest.fixture
def run(url, folder, monkeypatch, tmp_path):
    """A function that runs a command of the page unchanged, in a folder with `data`."""
    monkeypatch.setenv("NAKADI_URL", url)
    monkeypatch.setenv("NAKADI_CONFIG", str(tmp_path / "nakadi.yaml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(folder)

    def run(command):
        shown, said = StringIO(), StringIO()
        with redirect_stdout(shown), redirect_stderr(said):
            code = main(shlex.split(command))
        assert code == 0, (command, said.getvalue())
        return shown.getvalue()

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_works(run, command):
    """Each query on the page yields a result. (Q2, Q9)"""
    shown = run(command)
    assert shown or "--parquet" in command


def test_a_result_is_the_one_on_the_page(run):
    """The page shows what its example prints. (Q9)"""
    [command] = [each for each in COMMANDS if "as sold" in each]
    assert run(command) == SHOWN


def test_the_parquet_file_has_the_events(run, tmp_path):
    """The file has a row for each event, with the types of the columns. (Q9)"""
    [command] = [each for each in COMMANDS if "--parquet" in each]
    run(command)
    found = parquet.read_table(tmp_path / "orders.parquet")
    assert found.num_rows == 3
    assert [each["customer"]["country"] for each in found.to_pylist()] == ["DK"] * 3
