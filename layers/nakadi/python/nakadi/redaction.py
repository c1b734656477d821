"""What no log may say."""

from __future__ import annotations

import re

# Nothing logs tokens on purpose. This is for the day when one stands in the text of somebody's exception.
SECRETS = re.compile(
    r"(?P<said>\bauthorization['\"]?\s*[:=]\s*(?:b?['\"])?(?:bearer\s+|basic\s+)?)[^\s'\",;]+"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)[^\s'\",;]{6,}"
    r"|\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    return SECRETS.sub(lambda found: f"{found['said'] or found['scheme'] or ''}***", text)
