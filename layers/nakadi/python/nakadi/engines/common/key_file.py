"""A secret box whose key is in memory, or in a file next to the data; only the file's owner may read it."""

from __future__ import annotations

import base64
import os
import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nakadi.model.outcomes import Unavailable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12

_VERSION = "1."


class AesSecretBox:
    """Encrypts with AES-256-GCM. It calls `read_key` when the first secret is encrypted or decrypted: a broker without
    secrets needs no key.
    """

    def __init__(self, read_key: Callable[[], bytes]) -> None:
        self._read_key = read_key

    @cached_property
    def _cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # most processes need it never

        return AESGCM(self._read_key())

    def seal(self, secret: bytes, context: str) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return _VERSION + base64.b64encode(nonce + self._cipher.encrypt(nonce, secret, context.encode())).decode()

    def open(self, sealed: str, context: str) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # as above

        try:
            data = base64.b64decode(sealed.removeprefix(_VERSION), validate=True)
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], context.encode())
        except (InvalidTag, ValueError) as error:
            raise Unavailable(f"A secret of {context} cannot be opened: was it sealed with another key?") from error


def read_or_make_key(path: Path) -> bytes:
    """The key in this file, which is created with a new key if it is missing. Raises `Unavailable`."""
    try:
        if not path.exists():
            _write_key(path)
        key = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"The key {path} cannot be read or written: {error}") from error
    if len(key) != KEY_BYTES:
        raise Unavailable(f"The key {path} has {len(key)} bytes, and not {KEY_BYTES}")
    return key


def _write_key(path: Path) -> None:
    """Write a new key. If another process does so at the same time, the first complete file stays, and both processes
    read it.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # the mode allows only the owner
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()
