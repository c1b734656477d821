"""botocore sessions that share everything slow: its descriptions of services and endpoints, and its own handlers.

This module also signs in to Amazon MSK with IAM. A token is the URL of a request to connect, signed with the
credentials of the process, and never sent as a request. The library asks for one before it connects, and for the next
one when four fifths of its time are over.
"""

from __future__ import annotations

import gzip
from base64 import urlsafe_b64encode
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.hooks import HierarchicalEmitter
from botocore.loaders import JSONFileLoader, Loader, create_loader
from botocore.session import Session, get_session


def new_session() -> Session:
    """One for each client: making clients of one session at the same time is not safe."""
    session = Session(event_hooks=copy(_builtin_hooks()), include_builtin_handlers=False)
    session.register_component("data_loader", _botocore_loader(session.get_config_variable("data_path")))
    return session


@cache
def _builtin_hooks() -> HierarchicalEmitter:
    """What botocore registers for every session alike, one by one."""
    hooks = HierarchicalEmitter()
    Session(event_hooks=hooks)
    return hooks


@cache
def _botocore_loader(data_path: str | None) -> Loader:
    loader = create_loader(data_path)
    loader.file_loader = _OrjsonLoader()
    return loader


class _OrjsonLoader(JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    """Botocore builds ordered dictionaries of them, which takes three times as long."""

    def load_file(self, file_path: str) -> Any:
        for ending, opened in ((".json", open), (".json.gz", gzip.open)):
            with suppress(FileNotFoundError), opened(f"{file_path}{ending}", "rb") as file:
                return orjson.loads(file.read())
        return None


# Signing in to MSK ----------------------------------------------------------------------------------------------------


TOKEN_LIFETIME = timedelta(minutes=15)
"""The longest that MSK accepts. The cluster closes a connection whose token has expired, unless it has a new one."""

IAM_SERVICE = "kafka-cluster"


class NoCredentials(Exception):
    """Raised where the process has no credentials of AWS."""


def new_token_and_expiry(region: str) -> tuple[str, float]:
    """A token for clusters of the region, and when it expires, in seconds since 1970."""
    # They are asked for each time: those of a role are others after some hours.
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
    """One for all clients, so that credentials which have to be fetched are fetched once."""
    return get_session()
