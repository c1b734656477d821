"""The lists of strategies."""

import pytest

from tests.support.api import problem


@pytest.mark.parametrize(
    ("kind", "strategies"),
    [
        ("partition", ["hash", "user_defined", "random"]),
        ("enrichment", ["metadata_enrichment"]),
        ("validation", ["schema-validation"]),
    ],
)
def test_strategies_are_listed(api, kind, strategies):
    """Each kind of strategy is a plain list, even the validation strategies of the first API. (R215, R216, R217)"""
    answer = api.get(f"/registry/{kind}-strategies")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == strategies


def test_strategies_are_only_read(api):
    """A method other than GET and HEAD gets 405 with the permitted methods. (R26)"""
    answer = api.delete("/registry/partition-strategies")

    assert problem(answer, 405) == "Request method 'DELETE' not supported"
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}
