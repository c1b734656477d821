"""The promises of every store of claims: the sentences of `nakadi.ports.eid_claims`."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from nakadi.app.engines import open_eid_claims
from nakadi.model.outcomes import Unavailable
from nakadi.ports.eid_claims import EidClaim, EidClaims
from tests.support.engines import EID_CLAIMS, prepare_engine
from tests.support.patience import run_in_threads

NOON = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture(params=EID_CLAIMS)
def claims(request, tmp_path):
    with prepare_engine(EID_CLAIMS[request.param], tmp_path) as url:
        opened = open_eid_claims(url)
        assert opened is not None
        with closing(opened):
            yield opened


def a_claim(name: str, token: str = "one", since: datetime = NOON) -> EidClaim:
    return EidClaim(
        key=name.encode().ljust(32, b"\0"),
        token=token,
        storage_id="default",
        topic="topic-1",
        timeline=2,
        partition=3,
        start=4_000_000_000_000,
        since=since,
        settled_at=since + timedelta(seconds=90),
        expires_at=since + timedelta(hours=2),
    )


def standing_claims(claims: EidClaims, *names: str) -> list[EidClaim | None]:
    """The existing claims for these keys, as another attempt finds them; free keys stay free."""
    wanted = [a_claim(name, "somebody who looks") for name in names]
    found = claims.claim(wanted)
    claims.remove(wanted)
    return [found.get(each.key) for each in wanted]


def test_one_attempt_has_a_claim(claims):
    """A free key is claimed, and an existing claim is returned unchanged."""
    first, second = a_claim("a"), a_claim("a", "two")
    assert claims.claim([first, a_claim("b")]) == {}
    assert claims.claim([second, a_claim("c", "two")]) == {first.key: first}
    assert standing_claims(claims, "a", "b", "c", "d") == [first, a_claim("b"), a_claim("c", "two"), None]


def test_an_attempt_may_ask_again(claims):
    """An attempt that got no answer calls again, and its own claims do not count as conflicts."""
    claims.claim([a_claim("a")])
    assert claims.claim([a_claim("a"), a_claim("b")]) == {}


def test_a_claim_is_replaced_as_it_was_seen(claims):
    """Only the claim that was read is replaced, so only one of many attempts succeeds; repeating the call is
    harmless."""
    old, new, late = a_claim("a"), a_claim("a", "two"), a_claim("a", "three")
    claims.claim([old])
    assert list(claims.replace([(old, new), (a_claim("nothing"), a_claim("nothing", "two"))])) == [old.key]
    assert list(claims.replace([(old, new)])) == [old.key]
    assert list(claims.replace([(old, late)])) == []
    stored = replace(new, is_stored=True, since=NOON + timedelta(seconds=5))
    assert list(claims.replace([(new, stored)])) == [old.key]
    assert list(claims.replace([(new, late)])) == []
    assert standing_claims(claims, "a", "nothing") == [stored, None]


def test_a_claim_is_removed_by_its_token(claims):
    """An attempt removes its own claims, but not those of others."""
    claims.claim([a_claim("a"), a_claim("b")])
    claims.remove([a_claim("a"), a_claim("b", "two"), a_claim("c")])
    assert standing_claims(claims, "a", "b", "c") == [None, a_claim("b"), None]


def test_nothing_is_claimed_of_nothing(claims):
    """Calls without claims change nothing."""
    assert claims.claim([]) == {}
    assert list(claims.replace([])) == []
    claims.remove([])


def test_many_claims_at_once(claims):
    """All claims are made, even if there are more than fit into one call to the store."""
    names = [f"event {number}" for number in range(130)]
    claims.claim([a_claim(name) for name in names[::3]])
    assert len(claims.claim([a_claim(name, "two") for name in names])) == len(names[::3])
    assert [each and each.token for each in standing_claims(claims, *names)] == [
        "one" if index % 3 == 0 else "two" for index in range(len(names))
    ]


def test_only_one_of_many_attempts_gets_a_claim(claims):
    """When several attempts claim the same events at the same time, each event is claimed by one of them."""
    names = [f"event {number}" for number in range(20)]

    def attempt(number: int) -> list[str]:
        wanted = [a_claim(name, f"attempt {number}") for name in names]
        found = claims.claim(wanted)
        return [name for name, each in zip(names, wanted, strict=True) if each.key not in found]

    won = Counter(name for some in run_in_threads(attempt, 4) for name in some)
    assert won == dict.fromkeys(names, 1)


def test_closed_claims_refuse_every_call(claims):
    """A closed store raises `Unavailable` rather than permitting an append."""
    claims.close()
    for call in (lambda: claims.claim([a_claim("a")]), lambda: claims.replace([(a_claim("a"), a_claim("a"))])):
        with pytest.raises(Unavailable):
            call()
