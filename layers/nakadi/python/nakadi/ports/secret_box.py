"""The secret box: encrypts secrets that are stored, so that only the broker can read them."""

from __future__ import annotations

from typing import Protocol


class SecretBox(Protocol):
    def seal(self, secret: bytes, context: str) -> str:
        """A text from which `open` restores the secret, if it gets the same context. No two texts are the same."""

    def open(self, sealed: str, context: str) -> bytes:
        """The content that was sealed. Raises `Unavailable` if the key is not the one that sealed it, or the text was
        changed."""
