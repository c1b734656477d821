"""Tokens come from their sources, are fetched again in time, and are shown nowhere."""

import base64
from urllib.parse import parse_qs

import httpx
import msgspec
import pytest

from nakadi_client import ClientCredentials, NakadiError, TokenFile, UntilRefused
from nakadi_client.tokens import token_source

SECRET = "hush-hush"


class IdentityProvider:
    """An identity provider that counts its tokens."""

    def __init__(self, *, expires_in=None, status=200):
        self.requests = []
        self._expires_in = expires_in
        self._status = status

    def client(self):
        return httpx.Client(transport=httpx.MockTransport(self._answer))

    def _answer(self, request):
        self.requests.append(request)
        body = {"access_token": f"token-{len(self.requests)}", "expires_in": self._expires_in}
        return httpx.Response(self._status, content=msgspec.json.encode(body))


def client_credentials(provider, **more):
    return ClientCredentials("https://idp.test/token", "me", SECRET, client=provider.client(), **more)


def test_client_credentials_are_exchanged_for_a_token_which_is_kept():
    """One request suffices until the token gets old."""
    provider = IdentityProvider(expires_in=3_600)
    tokens = client_credentials(provider, scope="nakadi.event_stream.write")
    assert [tokens.get(), tokens.get()] == ["token-1", "token-1"]
    [request] = provider.requests
    form = {"grant_type": ["client_credentials"], "scope": ["nakadi.event_stream.write"]}
    assert parse_qs(request.content.decode()) == form
    assert base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")) == f"me:{SECRET}".encode()


def test_an_old_or_refused_token_is_fetched_again():
    """The source fetches a new token before the old one expires, and when the broker rejects a token."""
    provider = IdentityProvider(expires_in=1e-9)
    tokens = client_credentials(provider)
    assert tokens.get() != tokens.get()
    provider = IdentityProvider(expires_in=3_600)
    tokens = client_credentials(provider)
    tokens.get()
    tokens.refuse()
    assert tokens.get() == "token-2"


def test_a_provider_that_fails_is_named_without_the_secret():
    with pytest.raises(NakadiError, match=r"idp\.test") as failed:
        client_credentials(IdentityProvider(status=500)).get()
    error = failed.value
    assert SECRET not in f"{error!r} {error.__cause__!r} {client_credentials(IdentityProvider())!r}"
    assert error.__suppress_context__


def test_a_token_file_is_read_again_when_it_changes(tmp_path):
    """Once a program has replaced the file, the source returns the new token; a missing file is an error."""
    file = tmp_path / "token"
    file.write_text("one\n")
    tokens = TokenFile(file)
    assert tokens.get() == "one"
    (tmp_path / "new").write_text("two\n")
    (tmp_path / "new").replace(file)
    assert tokens.get() == "two"
    file.unlink()
    with pytest.raises(NakadiError, match="No such file"):
        tokens.get()
    assert "two" not in repr(tokens)


def test_strings_and_functions_are_sources():
    """The `token` of an application, a string or a function, becomes a source whose `repr` does not show the token."""
    fresh = iter(["a", "b"])
    assert token_source(None).get() is None
    assert token_source(SECRET).get() == SECRET
    called = token_source(lambda: next(fresh))
    assert [called.get(), called.get()] == ["a", "b"]
    assert SECRET not in repr(token_source(SECRET))


def test_a_function_that_takes_long_is_asked_again_only_when_its_token_is_refused():
    """The function's result is kept until the broker refuses it, even if the result is `None`."""
    given = ["second", None]
    tokens = UntilRefused(given.pop)
    assert [tokens.get(), tokens.get()] == [None, None]
    tokens.refuse()
    assert [tokens.get(), tokens.get()] == ["second", "second"]
    assert "second" not in repr(tokens)
