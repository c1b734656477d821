"""Authenticates callers: turns a bearer token into a subject, which the other functions trust."""

import os
from collections.abc import Mapping
from typing import Any

from nakadi.app.authentication import make_token_verifier
from nakadi.app.authorizer import Unauthorized, authorizer_decision
from nakadi.app.functions import FunctionMetrics, HandleInvocation, LambdaFunction
from nakadi.app.settings import read_settings

# Imported here rather than in the first invocation, because Lambda provides more CPU time until then.
from nakadi.auth.tokens import TokenVerifier
from nakadi.ports.clock import SystemClock


def make_handler(counts: FunctionMetrics) -> HandleInvocation:
    asked: TokenVerifier = make_token_verifier(read_settings(os.environ), SystemClock())

    def decide(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
        try:
            return authorizer_decision(asked, event)
        except Unauthorized:
            counts.count_one("Refusals")
            raise
        except Exception:
            counts.count_one("Faults")
            raise

    return decide


handler = LambdaFunction("authorizer", make_handler)
