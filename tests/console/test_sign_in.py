"""Signing in at the console of a broker that requires tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.support.tokens import EVERY_SCOPE, Issuer


def test_sign_in(failure):
    """Each sentence in the module's script names a test, which passes in the browser."""
    assert not failure, failure


@pytest.fixture(scope="module")
def issuer(tmp_path_factory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def token(issuer) -> str:
    return issuer.token()


@pytest.fixture(scope="module")
def settings(issuer) -> Iterator[dict[str, object]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _issuer_handler(issuer)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        pairs = {"authorize": f"{at}/authorize", "token": f"{at}/token", "client": "console", "scope": EVERY_SCOPE}
        yield {**issuer.settings, "console_sign_in": tuple(pairs.items())}
        server.shutdown()


def _issuer_handler(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    """An issuer whose only user agrees to everything. Only the client that requested an authorization code can exchange
    it for a token, and only once.
    """
    challenges: dict[str, tuple[str, str]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            assert (asked["response_type"], asked["client_id"]) == ("code", "console")
            assert asked["code_challenge_method"] == "S256"
            code = f"code-{len(challenges)}"
            challenges[code] = asked["code_challenge"], asked["redirect_uri"]
            self.send_response(302)
            self.send_header(
                "location", f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"
            )
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            sent = {name: values[0] for name, values in parse_qs(body).items()}
            digest = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
            proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            known = challenges.pop(sent.get("code", ""), None) == (proof, sent.get("redirect_uri", ""))
            if sent["grant_type"] == "refresh_token":
                known = sent["refresh_token"] == "again"
            # The console renews a token half a minute before it expires, so it renews this one at once.
            renewable = {"refresh_token": "again", "expires_in": 30} if "code" in sent else {}
            wrong = {"error_description": "The code is not known"}
            answer = {"access_token": issuer.token("ann"), **renewable} if known else wrong
            self.send_response(200 if known else 400)
            self.send_header("access-control-allow-origin", self.headers.get("origin", "*"))
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    return Handler
