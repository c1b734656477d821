"""Tokens with which a process signs in to MSK."""

import hashlib
import hmac
import time
from base64 import urlsafe_b64decode
from urllib.parse import parse_qs, urlsplit

import pytest

from nakadi.engines.common import msk_tokens

SECRET = "never/to+be+seen"  # not real credentials


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    """The credentials of a function: temporary credentials in environment variables."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "session/of+a+role==",
    }.items():
        monkeypatch.setenv(name, value)
    msk_tokens._aws_session.cache_clear()
    yield
    msk_tokens._aws_session.cache_clear()


def url_in(token):
    return urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def test_a_token_is_a_signed_request_to_connect():
    """The token is a URL of the region's service with the action, in base64 for URLs without padding."""
    token, _ = msk_tokens.new_token_and_expiry("eu-central-1")
    parts = urlsplit(url_in(token))
    parameters = {name: value for name, [value] in parse_qs(parts.query).items()}

    assert not set(token) & set("=+/")
    assert (parts.scheme, parts.netloc, parts.path) == ("https", "kafka.eu-central-1.amazonaws.com", "/")
    assert parameters["Action"] == "kafka-cluster:Connect"
    assert parameters["X-Amz-Credential"].split("/")[0] == "AKIDEXAMPLE"
    assert parameters["X-Amz-Credential"].split("/")[2:] == ["eu-central-1", "kafka-cluster", "aws4_request"]
    assert parameters["X-Amz-Security-Token"] == "session/of+a+role=="  # not real credentials either
    assert parameters["X-Amz-Expires"] == "900"
    assert parameters["User-Agent"] == "nakadi"


def test_the_signature_is_the_one_that_aws_computes():
    """The signature covers the whole query that stands before it in the URL, and the secret appears nowhere in the
    URL.
    """
    token, _ = msk_tokens.new_token_and_expiry("eu-central-1")
    url = url_in(token)
    query, _, signed = urlsplit(url).query.partition("&X-Amz-Signature=")
    parameters = {name: value for name, [value] in parse_qs(query).items()}
    canonical = "\n".join(
        [
            *("GET", "/", "&".join(sorted(query.split("&"))), "host:kafka.eu-central-1.amazonaws.com"),
            *("", "host", hashlib.sha256(b"").hexdigest()),
        ]
    )
    moment, scope = parameters["X-Amz-Date"], parameters["X-Amz-Credential"].partition("/")[2]
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")

    assert signed.partition("&")[0] == hmac.new(key, to_sign.encode(), "sha256").hexdigest()
    assert SECRET not in url


def test_a_token_expires_after_a_quarter_of_an_hour():
    """A token is valid for 15 minutes after it is made."""
    before = int(time.time())
    _, expiry = msk_tokens.new_token_and_expiry("eu-central-1")

    assert before + 900 <= expiry <= time.time() + 900


def test_a_process_without_credentials_is_told_so(monkeypatch, tmp_path):
    """If a process has no credentials, the message says so."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    msk_tokens._aws_session.cache_clear()

    with pytest.raises(msk_tokens.NoCredentials, match="no AWS credentials"):
        msk_tokens.new_token_and_expiry("eu-central-1")
