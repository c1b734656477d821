"""Sources of tokens. No token ever appears in a `repr` or in a message.

Producer(url, "order.placed", token=TokenFile("/meta/credentials/nakadi-token-secret"))
Producer(url, "order.placed", token=ClientCredentials("https://idp.example.org/token", "me", secret))
Producer(url, "order.placed", token=lambda: vault.read("nakadi"))
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from nakadi_client.errors import NakadiError

# A token is fetched again after this fraction of its lifetime, so that none expires during a request.
_PART_OF_LIFE = 0.8
_SECONDS_WITHOUT_EXPIRY = 60.0


class TokenSource(Protocol):
    """Gives tokens. `get` may take long; `refuse` reports that the broker rejected the latest token."""

    def get(self) -> str | None: ...

    def refuse(self) -> None: ...


Token = TokenSource | Callable[[], str | None] | str | None


class CalledFor:
    """Asks a function for a token with each request; the function should cache its token."""

    def __init__(self, function: Callable[[], str | None]) -> None:
        self._function = function

    def get(self) -> str | None:
        return self._function()

    def refuse(self) -> None:
        """Do nothing: the next request calls the function anyway."""

    def __repr__(self) -> str:
        return "CalledFor(...)"


class UntilRefused:
    """Asks a function for a token once, and again when the broker refuses it: for functions that take long."""

    def __init__(self, function: Callable[[], str | None]) -> None:
        self._function = function
        self._token: str | None = None
        self._is_known = False
        # Several threads may share one source: one of them asks, and the others wait for its token.
        self._lock = threading.Lock()

    def get(self) -> str | None:
        with self._lock:
            if not self._is_known:
                self._token, self._is_known = self._function(), True
            return self._token

    def refuse(self) -> None:
        with self._lock:
            self._is_known = False

    def __repr__(self) -> str:
        return "UntilRefused(...)"


class TokenFile:
    """A token in a file that another process keeps up to date.

    It is read again when the file was replaced or changed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._token: str | None = None

    def get(self) -> str | None:
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self._token, self._seen = self._path.read_text(encoding="utf-8").strip(), seen
        except OSError as error:
            raise NakadiError(f"{self._path} has no token: {error.strerror}.") from error
        return self._token

    def refuse(self) -> None:
        self._seen = None

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"


class ClientCredentials:
    """Fetches tokens with OAuth2's client credentials, and keeps each for four fifths of its lifetime.

    `url` is the token endpoint of the identity provider. `client` is an `httpx.Client` with its own proxy or
    certificates, if the provider needs them.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str | Callable[[], str],
        *,
        scope: str | None = None,
        client: httpx.Client | None = None,
    ) -> None:
        self._url = url
        self._client_id = client_id
        self._secret = client_secret if callable(client_secret) else lambda: client_secret
        self._scope = scope
        self._client = client
        self._token: str | None = None
        self._good_until = 0.0
        # Several producers may share one source: one of them fetches, and the others wait for its token.
        self._lock = threading.Lock()

    def get(self) -> str | None:
        with self._lock:
            if self._token is None or time.monotonic() >= self._good_until:
                self._fetch()
            return self._token

    def refuse(self) -> None:
        with self._lock:
            self._token = None

    def __repr__(self) -> str:
        return f"ClientCredentials({self._url!r}, {self._client_id!r}, ...)"

    def _fetch(self) -> None:
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        try:
            post = self._client.post if self._client else httpx.post
            answer = post(self._url, data=form, auth=(self._client_id, self._secret()))
            answer.raise_for_status()
            found = _TOKENS.decode(answer.content)
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            # The cause is omitted, because the request in it has the secret in a header.
            raise NakadiError(f"{self._url} gave no token: {type(error).__name__}.") from None
        self._token = found.access_token
        life = found.expires_in * _PART_OF_LIFE if found.expires_in else _SECONDS_WITHOUT_EXPIRY
        self._good_until = time.monotonic() + life


class Fixed:
    """A fixed token, or none."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def get(self) -> str | None:
        return self._token

    def refuse(self) -> None:
        """Do nothing: there is no other token."""

    def __repr__(self) -> str:
        return "Token(...)" if self._token else "no token"


class _Tokens(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


_TOKENS = msgspec.json.Decoder(_Tokens, strict=False)


def token_source(token: Any) -> TokenSource:
    """Turn an application's `token` into a source."""
    if token is None or isinstance(token, str):
        return Fixed(token)
    if hasattr(token, "get") and hasattr(token, "refuse"):
        found: TokenSource = token
        return found
    return CalledFor(token)
