"""The bills in docs/cost.md are those that the calculator prints, and the statements about them are true."""

import re
import shlex
from pathlib import Path

import pytest

from infra.cost.__main__ import main

PAGE = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
EXAMPLES = re.findall(r"```sh\npython -m infra\.cost(.*?)```\n\n```text\n(.*?)```\n", PAGE, re.DOTALL)


def printed_by(capsys, *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def printed_total(capsys, *arguments: str) -> float:
    return float(re.search(r"^Total +([\d,.]+)$", printed_by(capsys, *arguments), re.MULTILINE)[1].replace(",", ""))


@pytest.mark.parametrize(("arguments", "bill"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_bill_is_what_the_calculator_says(capsys, arguments, bill):
    """Every example prints the output below it."""
    assert printed_by(capsys, *shlex.split(arguments.replace("\\\n", " "))) == bill


def test_there_are_examples():
    """The page has six examples: an idle stage, a sleeping one, a small one, a busy one, the busy one without a
    gateway, and with MSK.
    """
    assert len(EXAMPLES) == 6


def test_a_million_events_that_come_directly_cost_a_dime(capsys):
    """The busy example with a load balancer and two tasks costs at most ten cents a million events."""
    bill = printed_by(capsys, *shlex.split(EXAMPLES[4][0].replace("\\\n", " ")))
    assert float(re.search(r"^A million events +([\d.]+)$", bill, re.MULTILINE)[1]) <= 0.10


@pytest.mark.parametrize(("example", "most"), [(0, 45), (1, 20)], ids=["idle", "asleep"])
def test_an_idle_stage_is_cheap(capsys, example, most):
    """An idle stage costs at most $45 a month with the defaults, and at most $20 while it sleeps."""
    assert printed_total(capsys, *shlex.split(EXAMPLES[example][0])) <= most


def test_small_batches_are_dear(capsys):
    """Ten events per request cost several times as much as a hundred, and one event per request costs much more than
    servers.
    """
    load = ("--events-per-second", "1000", "--event-bytes", "700", "--delivered-batch", "500", "--index-seconds", "10")
    hundred, ten, one = (printed_total(capsys, *load, "--batch", batch) for batch in ("100", "10", "1"))
    servers = float(re.search(r"MSK, 3 m7g\.large +([\d.,]+)", printed_by(capsys, *load))[1].replace(",", ""))
    assert ten > 3 * hundred
    assert one > 10 * servers


def test_a_hasty_indexer_is_dear(capsys):
    """The page gives the cost of DynamoDB for an indexer that runs every second, and for one that runs every ten
    seconds, as the calculator does.
    """
    arguments = shlex.split(EXAMPLES[3][0].replace("\\\n", " "))
    at = arguments.index("--index-seconds") + 1
    said = re.search(r"DynamoDB is \$(\d+) of the bill above instead of \$(\d+)", PAGE)
    for seconds, dollars in zip(("1", "10"), said.groups(), strict=True):
        bill = printed_by(capsys, *arguments[:at], seconds, *arguments[at + 1 :])
        assert round(float(re.search(r"^DynamoDB +([\d.]+)", bill, re.MULTILINE)[1])) == int(dollars)
