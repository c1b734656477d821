"""The table of prices."""

import pytest

from infra.cost.prices import PRICES, UnknownPrice, override_prices


@pytest.mark.parametrize("price", PRICES.values(), ids=PRICES)
def test_every_price_says_where_it_was_read(price):
    """A price has a unit and a source, and one without a source is marked as assumed."""
    assert price.dollars > 0
    assert price.unit
    assert price.source
    assert price.assumed == price.source.startswith("not read")


def test_a_price_that_is_given_is_no_assumption():
    """A given price replaces the one in the table, and does not count as assumed; the other prices stay."""
    prices = override_prices(["s3-month=0.02"])
    assert prices["s3-month"].dollars == 0.02
    assert not prices["s3-month"].assumed
    assert prices["api-request"] == PRICES["api-request"]


def test_an_unknown_price_is_refused():
    """A misspelled price is refused."""
    with pytest.raises(UnknownPrice, match="s3-moth"):
        override_prices(["s3-moth=1"])
