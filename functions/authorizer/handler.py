"""Who is asking: a bearer token becomes a subject, for the functions behind to trust."""

import os
from collections.abc import Mapping
from typing import Any

from nakadi.authentication import tokens
from nakadi.doorways.authorizer import Unauthorized, decision
from nakadi.doorways.function import Function
from nakadi.doorways.telling import Counts, Handle
from nakadi.ports.clock import SystemClock
from nakadi.settings import Settings


def opened(counts: Counts) -> Handle:
    asked = tokens(Settings.from_env(os.environ), SystemClock())

    def decide(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
        try:
            return decision(asked, event)
        except Unauthorized:
            counts.one("Refusals")
            raise
        except Exception:
            counts.one("Faults")
            raise

    return decide


handler = Function("authorizer", opened)
