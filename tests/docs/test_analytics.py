"""The examples of docs/analytics.md work, and its statements are true."""

import json
import re
import shlex
from contextlib import closing, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

from nakadi.model.event_type import Category
from nakadi_jobs import compaction
from nakadi_jobs.places import PLACES
from tests.support.jobs import DataFolder
from tests.support.spark import quick_spark

__all__ = ["quick_spark"]  # the fixture for all tests of this module

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "analytics.md").read_text()
BLOCKS = {found[1]: found[2] for found in re.finditer(r"```python\n# (\w+)\n(.*?)```", PAGE, re.DOTALL)}
COMMANDS = re.findall(r"^\.venv/bin/nakadi (jobs .+)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def data_folder_with_tables(tmp_path_factory):
    """A data folder with the tables that the page describes."""
    folder = tmp_path_factory.mktemp("data")
    with closing(DataFolder(folder)) as made:
        definition = json.loads((ROOT / "events/event_types/order.placed.json").read_text())
        batch = json.loads((ROOT / "events/batches/order.placed/three-orders.json").read_text())
        schema = json.loads(definition["schema"]["schema"])
        orders = made.event_type("order.placed", schema, category=Category.BUSINESS)
        made.archive_events(orders, [*batch, {**batch[0], "note": "by bike"}])
    with redirect_stderr(StringIO()) as told:
        assert compaction.main(["--data", str(folder), "--master", "local[2]"]) == 0, told.getvalue()
    return folder


def run_example(block, data_folder_with_tables):
    """Run an example on the data of this test, and return its output."""
    text = BLOCKS[block].replace("data/tables", str(data_folder_with_tables / "tables"))
    shown = StringIO()
    with redirect_stdout(shown):
        exec(compile(text, f"docs/analytics.md ({block})", "exec"), {})
    return shown.getvalue()


def test_the_examples_for_spark(data_folder_with_tables):
    """The examples for Spark show the published orders, their items, and the members without a column."""
    shown = run_example("spark", data_folder_with_tables)
    assert "DK" in shown
    assert "shoe-42" in shown
    assert "by bike" in shown


def test_the_examples_for_duckdb(data_folder_with_tables):
    """The examples for DuckDB show the same results."""
    shown = run_example("duckdb", data_folder_with_tables)
    assert "orders" in shown
    assert "sold" in shown


def test_pyiceberg(data_folder_with_tables):
    """The example for pyiceberg shows where the orders came from."""
    assert "'country': 'DK'" in run_example("pyiceberg", data_folder_with_tables)


@pytest.mark.parametrize("command", COMMANDS)
def test_jobs_take_the_arguments_of_the_commands(command):
    """Every command for a job on the page has arguments that the job takes."""
    _, job, *arguments = shlex.split(command)
    assert import_module(f"nakadi_jobs.{job}")._options(arguments)


def test_there_are_commands():
    """The page has at least the command for an erasure."""
    assert any("--do erase" in command for command in COMMANDS)


def test_the_size_of_an_event_is_described_as_in_tables():
    """The page describes the size of an event as the column's comment does; another test follows it from publisher
    to table.
    """
    [comment] = [comment for name, _, comment in PLACES if name == "nakadi_size"]
    assert f"| `nakadi_size` | {comment} |" in (ROOT / "docs/analytics.md").read_text()
