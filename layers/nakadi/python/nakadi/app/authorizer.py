"""The Lambda authorizer: verifies the token of a request, and returns its subject to API Gateway."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nakadi.http.api_gateway import authorizer_context_from_subject
from nakadi.model.authorization import Subject
from nakadi.model.outcomes import NotAuthenticated

if TYPE_CHECKING:
    from nakadi.auth.tokens import TokenVerifier

log = logging.getLogger(__name__)


class Unauthorized(Exception):
    """Raised for an invalid token: API Gateway answers 401 if the message is exactly `Unauthorized`."""

    def __init__(self) -> None:
        super().__init__("Unauthorized")


def authorizer_decision(tokens: TokenVerifier, event: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return policy_allowing(tokens.verified_subject(event.get("authorizationToken")), event["methodArn"])
    except NotAuthenticated as error:
        # One log line instead of the traceback that Lambda writes for every exception.
        log.info("Refused: %s", error.detail)
        raise Unauthorized from None


def policy_allowing(subject: Subject, method_arn: str) -> dict[str, Any]:
    """A policy that allows the whole API. The functions check permissions: only they understand the requests."""
    api, stage, *_ = method_arn.split("/")
    statement = {"Action": "execute-api:Invoke", "Effect": "Allow", "Resource": f"{api}/{stage}/*"}
    return {
        "principalId": subject.name,
        "policyDocument": {"Version": "2012-10-17", "Statement": [statement]},
        "context": authorizer_context_from_subject(subject),
    }
