"""The authorizer: whose token it is, and a policy that may be kept for every request with the same token."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nakadi.auth.tokens import Tokens
from nakadi.http.apigateway import context_of
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import NotAuthenticated

log = logging.getLogger(__name__)


class Unauthorized(Exception):
    """Raised for a token that is not good: API Gateway answers 401 when it reads this very word."""

    def __init__(self) -> None:
        super().__init__("Unauthorized")


def decision(tokens: Tokens, event: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return policy_of(tokens.subject(event.get("authorizationToken")), event["methodArn"])
    except NotAuthenticated as error:
        # One log line instead of the traceback that Lambda writes for every exception.
        log.info("Refused: %s", error.detail)
        raise Unauthorized from None


def policy_of(subject: Subject, method_arn: str) -> dict[str, Any]:
    """The whole API is open to the subject; what it may do is decided behind, where the request is understood."""
    api, stage, *_ = method_arn.split("/")
    statement = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": f"{api}/{stage}/*"}
    return {
        "principalId": subject.name,
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": context_of(subject),
    }
