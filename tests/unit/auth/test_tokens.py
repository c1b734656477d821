import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt
import pytest
from msgspec.structs import replace

from nakadi.auth import tokens as tokens_module
from nakadi.auth.key_set import KEY_SET_MAX_AGE_SECONDS, KEY_SET_RETRY_INTERVAL_SECONDS, KeySet, make_key_fetcher
from nakadi.auth.tokens import TokenRules, TokenVerifier
from nakadi.model.authorization import Attribute
from nakadi.model.outcomes import NotAuthenticated
from nakadi.ports.clock import SystemClock
from tests.support.clock import HandMovedClock
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

RULES = TokenRules(
    issuer=ISSUER,
    audience=AUDIENCE,
    algorithms=("ES256", "RS256"),
    leeway_seconds=30,
    subject_claim="sub",
    attribute_claims=(("user", "sub"), ("team", "teams")),
)


@pytest.fixture
def issuer(tmp_path):
    return Issuer(tmp_path)


@pytest.fixture
def tokens(issuer):
    return tokens_of(issuer)


def tokens_of(issuer, **rules):
    clock = SystemClock()
    return TokenVerifier(KeySet(make_key_fetcher(str(issuer.path)), clock), replace(RULES, **rules), clock)


@dataclass(frozen=True)
class InSeconds:
    """A time that is computed when the test runs, rather than when it is collected."""

    seconds: int

    def resolve_subject(self):
        return datetime.now(UTC) + timedelta(seconds=self.seconds)


def resolve_subject(claims):
    return {name: value.resolve_subject() if isinstance(value, InSeconds) else value for name, value in claims.items()}


def test_a_valid_token_identifies_the_subject(tokens, issuer):
    """A signed token gives the subject its name, attributes, scopes and realm. (R49, R66)"""
    token = issuer.token("ann", scope="uid nakadi.config.write", teams=["checkout", "search"], realm="/people")

    subject = tokens.verified_subject(f"Bearer {token}")

    assert subject.name == "ann"
    assert subject.scopes == {"uid", "nakadi.config.write"}
    assert subject.realm == "/people"
    assert subject.attributes == {
        Attribute("user", "ann"),
        Attribute("team", "checkout"),
        Attribute("team", "search"),
    }
    assert not subject.trusted


BOTH = (("user", "sub"), ("service", "sub"), ("team", "teams"))


@pytest.mark.parametrize(
    ("claims", "attributes"),
    [
        ({}, {("user", "nakadi_admin")}),
        ({"realm": "/employees"}, {("user", "nakadi_admin")}),
        ({"realm": ["/services"]}, {("user", "nakadi_admin")}),
        ({"realm": "/services"}, {("service", "nakadi_admin")}),
        ({"realm": "/services", "teams": ["ops"]}, {("service", "nakadi_admin"), ("team", "ops")}),
    ],
)
def test_a_subject_is_a_user_or_a_service(issuer, claims, attributes):
    """A user with the name of a service has none of the service's attributes: the realm distinguishes users from
    services."""
    tokens = tokens_of(issuer, attribute_claims=BOTH, service_realms=("/services",))

    subject = tokens.verified_subject(issuer.bearer("nakadi_admin", **claims)["Authorization"])

    assert subject.attributes == {Attribute(*each) for each in attributes}


def test_all_tokens_may_belong_to_services(issuer):
    """If an issuer serves only services, no realm is needed, and no subject is a user."""
    tokens = tokens_of(issuer, attribute_claims=BOTH, service_realms=("*",))

    assert tokens.verified_subject(issuer.bearer("shop")["Authorization"]).attributes == {Attribute("service", "shop")}


def test_users_and_services_may_have_claims_of_their_own(issuer):
    """If services have a claim that users lack, no realm is needed to distinguish them."""
    tokens = tokens_of(issuer, attribute_claims=(("user", "sub"), ("service", "app")))

    assert tokens.verified_subject(issuer.bearer("ann")["Authorization"]).attributes == {Attribute("user", "ann")}
    assert tokens.verified_subject(issuer.bearer("ann", app="shop")["Authorization"]).attributes == {
        Attribute("user", "ann"),
        Attribute("service", "shop"),
    }


@pytest.mark.parametrize("header", [None, ""])
def test_a_missing_token_has_its_own_message(tokens, header):
    """Without a token, the answer is that authentication is required. (R43)"""
    with pytest.raises(NotAuthenticated, match="Full authentication is required to access this resource"):
        tokens.verified_subject(header)


@pytest.mark.parametrize(
    "header", ["Basic YTpi", "Bearer", "Bearer ", "Bearer a.b", "Bearer " + "x" * 20_000, "Bearer a.b.c", "Bearer \x00"]
)
def test_malformed_tokens_are_refused(tokens, header):
    """A header without a token is refused, with a different message than a missing header. (R43)"""
    with pytest.raises(NotAuthenticated) as refusal:
        tokens.verified_subject(header)

    assert "Full authentication" not in refusal.value.detail


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": InSeconds(-31)},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": 10**400},
        {"exp": float("nan")},
        {"nbf": -(10**400)},
        {"nbf": InSeconds(40)},
        {"iat": InSeconds(40)},
        {"iss": "https://somebody.else"},
        {"iss": None},
        {"aud": "somebody-else"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
    ],
)
def test_invalid_claims_are_refused(tokens, issuer, claims):
    """The issuer, the audience, the times and the subject are all checked. (R43)"""
    with pytest.raises(NotAuthenticated):
        tokens.verified_subject("Bearer " + issuer.sign({"sub": "ann", "scope": "uid", **resolve_subject(claims)}))


@pytest.mark.parametrize(
    "header",
    ["[" * 6000, '{"alg":"ES256","kid":' + "[" * 6000, '{"alg":["ES256"]}', '{"alg":"ES256","kid":{}}', "5", "\ud800"],
)
def test_a_token_with_a_malformed_header_is_refused(tokens, header):
    """Whatever the unsigned part of a token contains, the answer is 401. (R43)"""
    first = base64.urlsafe_b64encode(header.encode("utf-8", "surrogatepass")).decode().rstrip("=")

    with pytest.raises(NotAuthenticated):
        tokens.verified_subject(f"Bearer {first}.e30.c2lnbmF0dXJl")


@pytest.mark.parametrize("claims", [{"exp": InSeconds(-20)}, {"nbf": InSeconds(20)}, {"iat": InSeconds(20)}])
def test_clocks_may_differ_a_little(tokens, issuer, claims):
    """The times in a token may differ from the broker's time by the leeway, and by no more. (R43)"""
    assert tokens.verified_subject("Bearer " + issuer.sign({"sub": "ann", **resolve_subject(claims)})).name == "ann"


def test_a_token_without_signature_is_refused(tokens):
    """A token with the algorithm `none` is refused. (R43)"""
    unsigned = jwt.encode({"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": 9**10}, None, "none")

    with pytest.raises(NotAuthenticated, match="algorithm"):
        tokens.verified_subject(f"Bearer {unsigned}")


def test_a_public_key_is_not_accepted_as_a_shared_secret(tokens):
    """A token that is signed with the public key as if that were a shared secret is refused. (R43)"""
    forged = jwt.encode({"sub": "ann"}, "0" * 64, "HS256", {"kid": "0"})

    with pytest.raises(NotAuthenticated, match="algorithm"):
        tokens.verified_subject(f"Bearer {forged}")


def test_a_changed_token_is_refused(tokens, issuer):
    """A token whose claims were changed after signing is refused. (R43)"""
    head, body, signature = issuer.token("ann").split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    changed = base64.urlsafe_b64encode(json.dumps({**claims, "sub": "the-admin"}).encode()).decode().rstrip("=")

    with pytest.raises(NotAuthenticated):
        tokens.verified_subject(f"Bearer {head}.{changed}.{signature}")


def test_an_unknown_key_id_is_refused(tokens, issuer):
    """A token that names an unknown key is refused. (R43)"""
    with pytest.raises(NotAuthenticated, match="key"):
        tokens.verified_subject("Bearer " + issuer.sign({"sub": "ann"}, kid="unknown"))


def test_scopes_may_come_as_a_list(tokens, issuer):
    """Scopes are read from a string of words and from a list. (R44)"""
    listed = issuer.sign({"sub": "ann", "scp": ["uid", "nakadi.event_stream.read"]})

    assert tokens.verified_subject(f"bearer {listed}").scopes == {"uid", "nakadi.event_stream.read"}


def test_a_key_that_replaced_another_under_its_id_is_used(tmp_path):
    """An issuer may give a new key the id of the old one, or no ids at all: tokens of the new key are valid as soon as
    it may be fetched, and tokens of the old key no longer. Wrong signatures do not cause a read of the keys each
    time."""
    clock = HandMovedClock(datetime.now(UTC))
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = Issuer(tmp_path / "old"), Issuer(tmp_path / "new")
    current, reads = [old], []

    def fetch():
        reads.append(1)
        return current[0].path.read_bytes()

    tokens = TokenVerifier(KeySet(fetch, clock), RULES, clock)
    tokens.verified_subject(f"Bearer {old.token()}")
    current[0] = new
    for _ in range(5):
        with pytest.raises(NotAuthenticated):
            tokens.verified_subject(f"Bearer {new.token()}")
    assert len(reads) == 1
    clock.move(KEY_SET_RETRY_INTERVAL_SECONDS)
    assert tokens.verified_subject(f"Bearer {new.token()}").name == "ann"
    for _ in range(5):
        with pytest.raises(NotAuthenticated):
            tokens.verified_subject(f"Bearer {old.token()}")
    assert len(reads) == 2


def test_the_name_of_a_subject_has_a_maximum_length(issuer):
    """A subject's name that would add kilobytes to each of its events is refused."""
    tokens = tokens_of(issuer)

    assert tokens.verified_subject(issuer.bearer("a" * 1000)["Authorization"]).name == "a" * 1000
    with pytest.raises(NotAuthenticated, match="The token's subject has more than 1000 characters"):
        tokens.verified_subject(issuer.bearer("a" * 1001)["Authorization"])


@pytest.fixture
def decoded_tokens(monkeypatch):
    """The tokens whose signatures are checked, in order."""
    seen = []
    decode = jwt.decode

    def decode_and_count(token, *arguments, **more):
        seen.append(token)
        return decode(token, *arguments, **more)

    monkeypatch.setattr(jwt, "decode", decode_and_count)
    return seen


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def verifier_with_clock(issuer, clock):
    """A verifier of tokens whose clock the test moves."""
    return TokenVerifier(KeySet(make_key_fetcher(str(issuer.path)), clock), RULES, clock)


def test_the_signature_of_a_token_in_use_is_checked_once(verifier_with_clock, issuer, clock, decoded_tokens):
    """The signature of each token is checked once, however clients spell the scheme."""
    first, second = (
        issuer.token(name, scope="uid", exp=clock.now() + timedelta(hours=1), iat=clock.now())
        for name in ("ann", "bob")
    )

    for _ in range(3):
        assert verifier_with_clock.verified_subject(f"Bearer {first}").name == "ann"
        assert verifier_with_clock.verified_subject(f"bearer {second}").name == "bob"

    assert decoded_tokens == [first, second]


def test_a_known_token_expires(verifier_with_clock, issuer, clock):
    """The verifier refuses a known token once it has expired, and before the time from which it is valid."""
    header = f"Bearer {issuer.token('ann', exp=clock.now() + timedelta(seconds=60), iat=clock.now())}"
    assert verifier_with_clock.verified_subject(header).name == "ann"
    clock.move(60 + RULES.leeway_seconds - 1)
    assert verifier_with_clock.verified_subject(header).name == "ann"
    clock.move(1)

    with pytest.raises(NotAuthenticated, match="expired"):
        verifier_with_clock.verified_subject(header)


def test_a_known_token_ends_with_its_key(verifier_with_clock, issuer, clock, decoded_tokens, tmp_path):
    """When the keys are read again, every token is verified again; it is refused if its key id now belongs to another
    key."""
    header = f"Bearer {issuer.token('ann', exp=clock.now() + timedelta(days=1), iat=clock.now())}"
    for _ in range(2):
        assert verifier_with_clock.verified_subject(header).name == "ann"
        clock.move(KEY_SET_MAX_AGE_SECONDS)
    assert len(decoded_tokens) == 2
    (tmp_path / "other").mkdir()
    issuer.path.write_text(Issuer(tmp_path / "other").path.read_text())

    with pytest.raises(NotAuthenticated, match="Signature"):
        verifier_with_clock.verified_subject(header)


@pytest.mark.parametrize("pause", [KEY_SET_MAX_AGE_SECONDS, -1.0], ids=["stood still", "put back"])
def test_keys_are_no_older_than_they_may_be_by_either_clock(verifier_with_clock, issuer, clock, decoded_tokens, pause):
    """A process whose steady clock stood still, or whose time of day was set back, reads the keys again."""
    header = f"Bearer {issuer.token('ann', exp=clock.now() + timedelta(days=1), iat=clock.now())}"
    assert verifier_with_clock.verified_subject(header).name == "ann"
    clock.stand_still(pause)

    assert verifier_with_clock.verified_subject(header).name == "ann"
    assert len(decoded_tokens) == 2


def test_only_so_many_tokens_are_known(verifier_with_clock, issuer, clock, decoded_tokens, monkeypatch):
    """Clients with many tokens do not fill the memory: the oldest token is forgotten, and is verified again when it
    returns."""
    monkeypatch.setattr(tokens_module, "MAX_CACHED_TOKENS", 2)
    times = {"exp": clock.now() + timedelta(hours=1), "iat": clock.now()}
    headers = [f"Bearer {issuer.token(name, **times)}" for name in ("ann", "bob", "cid")]

    for header in (*headers, *headers[1:], headers[0]):
        verifier_with_clock.verified_subject(header)

    assert len(decoded_tokens) == 4
