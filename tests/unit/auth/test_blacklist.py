"""The blacklist."""

import pytest

from nakadi.auth import blacklist
from nakadi.auth.blacklist import Blacklist
from nakadi.model.authorization import BlockedKind
from nakadi.model.outcomes import Invalid
from tests.support.registry import settings_document


def test_the_blacklist_has_a_maximum_of_names_per_kind(monkeypatch):
    """Every request is checked against the list, so its length is limited; existing entries stay, and can be removed.
    (R223)"""
    monkeypatch.setattr(blacklist, "MAX_BLACKLIST_NAMES_PER_KIND", 2)
    listed = Blacklist(settings_document("blacklist"))
    for name in ("a", "b", "b"):
        listed.block(BlockedKind.CONSUMER_APP, name)
    listed.block(BlockedKind.PRODUCER_APP, "c")

    with pytest.raises(Invalid, match="The blacklist has at most 2 names of one kind"):
        listed.block(BlockedKind.CONSUMER_APP, "c")
    listed.unblock(BlockedKind.CONSUMER_APP, "a")

    assert listed.entries()[BlockedKind.CONSUMER_APP] == ("b",)
