"""Signing in to Amazon MSK with IAM.

A token is the URL of a request to connect, signed with the credentials of the process; the request itself is never
sent. The library asks for a token before it connects, and for the next one after four fifths of its lifetime.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from functools import cache
from urllib.parse import parse_qs, urlsplit

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.session import Session, get_session

TOKEN_LIFETIME = timedelta(minutes=15)
"""The longest lifetime that MSK accepts. The cluster closes a connection when its token expires, unless the client has
sent a new token.
"""

IAM_SERVICE = "kafka-cluster"


class NoCredentials(Exception):
    """Raised if the process has no AWS credentials."""


def new_token_and_expiry(region: str) -> tuple[str, float]:
    """A token for clusters of the region, and when it expires, in seconds since 1970."""
    # The credentials are read each time, because those of a role change after some hours.
    credentials = _aws_session().get_credentials()
    if credentials is None:
        raise NoCredentials("This process has no AWS credentials to sign in to MSK with")
    request = AWSRequest("GET", f"https://kafka.{region}.amazonaws.com/", params={"Action": f"{IAM_SERVICE}:Connect"})
    signer = SigV4QueryAuth(
        credentials.get_frozen_credentials(), IAM_SERVICE, region, int(TOKEN_LIFETIME.total_seconds())
    )
    signer.add_auth(request)
    return urlsafe_b64encode(f"{request.url}&User-Agent=nakadi".encode()).rstrip(b"=").decode(), _token_expiry(
        request.url
    )


def _token_expiry(url: str) -> float:
    parameters = parse_qs(urlsplit(url).query)
    signed = datetime.strptime(parameters["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return signed.timestamp() + int(parameters["X-Amz-Expires"][0])


@cache
def _aws_session() -> Session:
    """One session for all clients, so that credentials are fetched only once."""
    return get_session()
