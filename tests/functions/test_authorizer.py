"""The authorizer: turns tokens into policies."""

import json

import pytest

from nakadi.http.api_gateway import subject_from_context
from nakadi.model.authorization import Attribute
from tests.support.functions import load_recorded_event


@pytest.fixture
def ask(functions, issuer):
    def ask(token=None, **event):
        bearer = f"Bearer {issuer.token() if token is None else token}"
        return functions.invoke(
            "authorizer", load_recorded_event("authorizer/token") | {"authorizationToken": bearer} | event
        )

    return ask


def test_a_good_token_opens_the_whole_api(ask):
    """The policy applies to every request with the same token, so the gateway may cache it."""
    policy = ask()

    assert policy["principalId"] == "ann"
    assert policy["policyDocument"]["Statement"] == [
        {
            "Action": "execute-api:Invoke",
            "Effect": "Allow",
            "Resource": "arn:aws:execute-api:eu-central-1:210987654321:a1b2c3d4e5/live/*",
        }
    ]


def test_functions_behind_learn_the_subject(ask, issuer):
    """The subject's name, attributes, scopes and realm pass the gateway unchanged."""
    context = ask(issuer.token("bob", scope="uid other", teams=["a", "b"], realm="/employees"))["context"]
    subject = subject_from_context(context)

    assert all(isinstance(value, str) for value in context.values())
    assert (subject.name, subject.scopes, subject.realm) == ("bob", {"uid", "other"}, "/employees")
    assert {Attribute("team", "a"), Attribute("team", "b"), Attribute("user", "bob")} <= subject.attributes
    assert not subject.trusted


@pytest.mark.parametrize(
    "claims",
    [{"exp": 1}, {"iss": "https://somebody.else"}, {"aud": "something else"}, {"sub": ""}, {"nbf": 32503680000}],
    ids=repr,
)
def test_a_bad_token_is_a_401(ask, issuer, claims):
    """For a bad token, the function raises an error whose whole text is `Unauthorized`, for which API Gateway answers
    401. (R43)
    """
    with pytest.raises(Exception, match=r"^Unauthorized$"):
        ask(issuer.sign({"sub": "ann", **claims}))


@pytest.mark.parametrize("token", ["", "nonsense", "a.b.c", "x" * 20_000])
def test_nonsense_is_a_401(ask, token):
    """A text that is not a token is refused like a bad token. (R43)"""
    with pytest.raises(Exception, match=r"^Unauthorized$"):
        ask(token)


def test_refusals_are_reported_without_the_token(ask, issuer, capsys):
    """The function counts a refusal and logs its reason, but not the token."""
    token = issuer.sign({"sub": "ann", "exp": 1})
    with pytest.raises(Exception, match=r"^Unauthorized$"):
        ask(token)
    out = capsys.readouterr().out

    assert token not in out
    assert "The token has expired" in out
    assert [json.loads(line)["Refusals"] for line in out.splitlines() if "_aws" in line] == [[1]]


def test_keys_that_cannot_be_read_are_a_fault_of_ours(functions, issuer, environment, capsys):
    """If the function cannot read the keys, it refuses no token as invalid, and counts the fault."""
    environment.setenv("NAKADI_AUTH_JWKS", str(issuer.path / "nowhere"))

    with pytest.raises(Exception, match="keys"):
        functions.invoke(
            "authorizer", load_recorded_event("authorizer/token") | {"authorizationToken": f"Bearer {issuer.token()}"}
        )

    out = capsys.readouterr().out
    assert [json.loads(line)["Faults"] for line in out.splitlines() if "_aws" in line] == [[1]]
