"""Clients of AWS services, one for each service, region and timeout.

They do not repeat failed calls: the deliveries do, because they know for how long. Regions come from ARNs; credentials
and other endpoints (`AWS_ENDPOINT_URL_SQS`) come from where every AWS program looks for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
)
from botocore.parsers import ResponseParserError

from nakadi.delivery.aws_calls import CallFailed
from nakadi.engines.common.aws_sessions import new_session

CONNECT_TIMEOUT_SECONDS = 5.0
MAX_CONNECTIONS = 50

NOT_SENT_ERRORS = (ConnectTimeoutError, EndpointConnectionError)

CODES_THAT_BLAME_REQUESTS = frozenset(
    {
        *("InvalidParameter", "InvalidParameterValue", "InvalidAttributeValue", "InvalidMessageContents"),
        *("BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong"),
        *("InvalidRequestContentException", "RequestTooLargeException", "RequestEntityTooLargeException"),
        *("ValidationError", "ValidationException"),
    }
)
"""The codes that blame the request. All other codes mean that the service is busy, or that the target is missing or
forbidden.
"""

T = TypeVar("T")


class AwsClients:
    """May be used by many threads."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str, float], Any] = {}
        self._opening = threading.Lock()

    def call(self, service: str, region: str, read_timeout: float, call: Callable[[Any], T]) -> T:
        try:
            return call(self._get(service, region, read_timeout))
        except (BotoCoreError, ClientError) as error:
            raise _failure_of_call(error) from error
        except (ResponseParserError, UnicodeDecodeError) as error:
            raise CallFailed(f"The answer cannot be read: {error}", may_have_arrived=True) from error

    def close(self) -> None:
        with self._opening:
            for each in self._clients.values():
                each.close()
            self._clients.clear()

    def _get(self, service: str, region: str, read_timeout: float) -> Any:
        key = (service, region, read_timeout)
        with self._opening:
            if key not in self._clients:
                session = new_session()
                if session.get_credentials() is None:
                    # Raise, because a client that is created without credentials would never look for credentials
                    # again.
                    raise NoCredentialsError
                config = Config(
                    connect_timeout=CONNECT_TIMEOUT_SECONDS,
                    read_timeout=read_timeout,
                    retries={"mode": "standard", "total_max_attempts": 1},
                    max_pool_connections=MAX_CONNECTIONS,
                    tcp_keepalive=True,
                )
                self._clients[key] = session.create_client(service, config=config, region_name=region)
            return self._clients[key]


def _failure_of_call(error: BotoCoreError | ClientError) -> CallFailed:
    if not isinstance(error, ClientError):
        is_lost = isinstance(error, HTTPClientError) and not isinstance(error, NOT_SENT_ERRORS)
        return CallFailed(str(error), may_have_arrived=is_lost)
    code = error.response["Error"].get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return CallFailed(
        f"{code}: {error.response['Error'].get('Message', '')}",
        status=status,
        blames_request=code in CODES_THAT_BLAME_REQUESTS,
    )
