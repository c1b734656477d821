"""The program that prints bills."""

import pytest

from infra.cost.__main__ import main
from infra.cost.bill import PARTS
from infra.cost.prices import PRICES


def test_the_bill_has_every_part(capsys):
    """A bill has all its parts, the prices of other services, and the cost of idle resources."""
    assert main(["--events-per-second", "50", "--details"]) == 0
    told = capsys.readouterr().out
    assert all(part in told for part in PARTS if part != "MSK")
    assert all(text in told for text in ("Total", "EventBridge", "an idle event type", "publish requests"))


@pytest.mark.parametrize("kind", ["serverless", "express", "provisioned"])
def test_a_bill_has_one_log(capsys, kind):
    """With events in MSK, the bill has the cluster and nothing of Kinesis; otherwise, the reverse."""
    main(["--storage", "msk", "--msk", kind, "--details"])
    of_msk = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    main(["--details"])
    of_kinesis = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]

    assert ("MSK" in of_msk, "Kinesis" in of_msk) == (True, False)
    assert ("MSK" in of_kinesis, "Kinesis" in of_kinesis) == (False, True)


def test_what_rests_on_an_assumption_is_marked(capsys):
    """A part with an assumed price has a mark; one whose prices have a source has none."""
    main([])
    lines = {line.rsplit(" ", 1)[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    marked = {part: any(line.startswith(part) and line.endswith("*") for line in lines.values()) for part in PARTS}
    assert marked["S3"]
    assert not marked["API Gateway"]


def test_all_prices_can_be_listed(capsys):
    """All prices can be listed, with their sources."""
    assert main(["--prices"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in PRICES)


@pytest.mark.parametrize("wrong", [["--price", "gold=3"], ["--price", "trace=much"], ["--batch", "0"]])
def test_impossible_inputs_are_reported(capsys, wrong):
    """Inputs that cannot be calculated are reported on stderr."""
    assert main(wrong) == 2
    told = capsys.readouterr()
    assert told.err
    assert not told.out
