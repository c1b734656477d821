"""Removes secrets from texts that leave the machine, such as logs and settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "[removed]"

_TELLING_NAME = (
    r"[\w.-]*(?:token|secret|passw(?:or)?d|credential|salt|dsn|(?:access|api|private|signing|sink)[_.-]?key)[\w.-]*"
)
_is_secret_name = re.compile(_TELLING_NAME, re.IGNORECASE).fullmatch
_SHORTEST_SECRET = 6
"""A shorter secret would also be found in unrelated texts, so it is not searched for."""

_PASSWORD_WITHIN = re.compile(r"(?<=:)[^/:@\s]+(?=@)|(?<=password=)\S+")
"""The password in a URL, or in the address of a database."""

_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), replacement)
    for pattern, replacement in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", MASK),
        # The user of a URL, `scheme://user:password@host`.
        (r"(?<=://)[^/\s\"'@]+@", f"{MASK}@"),
        (r"\b(bearer|basic|digest)\s+[\w.~+/=-]{6,}", rf"\1 {MASK}"),
        # Tokens by their form: JWT, Standard Webhooks, AWS, GitHub.
        (r"\beyJ[\w-]+\.[\w-]+\.[\w-]*", MASK),
        (r"\bwhsec_[\w+/=-]+", MASK),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", MASK),
        (r"\bgh[pousr]_\w{20,}", MASK),
        # A value beside its name, as in `password=…`, `"client_secret": "…"` and `X-Api-Key: …`. The quotes are kept.
        (rf"""(?<![\w.-])({_TELLING_NAME})(\\*["']?\s*[=:]\s*\\*)"(?:\\.|[^"\\\n])*("?)""", rf'\1\2"{MASK}\3'),
        (rf"""(?<![\w.-])({_TELLING_NAME})(\\*["']?\s*[=:]\s*\\*)'[^'\n]*('?)""", rf"\1\2'{MASK}\3"),
        (rf"""(?<![\w.-])({_TELLING_NAME})(\\*["']?\s*[=:]\s*\\*)[^\s,;&}}"'\[{{]+""", rf"\1\2{MASK}"),
        (r"\b((?:proxy-)?authorization|(?:set-)?cookie)([\"']?\s*[=:]\s*)[^\n]+", rf"\1\2{MASK}"),
    )
)


def secret_values(variables: Mapping[str, str], further: Iterable[str] = ()) -> frozenset[str]:
    """The secret values of these environment variables, and further ones, that must not appear anywhere."""
    named = [value for name, value in variables.items() if _is_secret_name(name)]
    within = [found for value in variables.values() for found in _PASSWORD_WITHIN.findall(value)]
    return frozenset(value.strip() for value in (*named, *within, *further) if len(value.strip()) >= _SHORTEST_SECRET)


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return the text with known secrets, and what looks like a secret, replaced by a mask."""
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def shown_settings(variables: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, str]:
    """The settings of a broker among environment variables, without the values of those that are secret."""
    return {
        name: MASK if value and _is_secret_name(name) else without_secrets(value, known)
        for name, value in sorted(variables.items())
        if name.startswith("NAKADI_")
    }
