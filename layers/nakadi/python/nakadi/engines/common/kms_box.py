"""A secret box whose key is in AWS KMS, and never leaves KMS.

KMS itself encrypts at most 4 KiB, and headers may be longer, so each secret is encrypted with its own data key. KMS
creates and encrypts the data key, which is stored with the secret. KMS also gets a context, so that its log says which
secret was decrypted, and nobody can decrypt a secret as that of another subscription.
"""

from __future__ import annotations

import base64
import struct
import threading
from functools import partial
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from nakadi.engines.common.aws_sessions import new_session
from nakadi.engines.common.key_file import AesSecretBox
from nakadi.model.outcomes import BadSetting, Unavailable

CONNECT_TIMEOUT_SECONDS = 2.0
READ_TIMEOUT_SECONDS = 5.0

CONTEXT_NAME = "nakadi"

_VERSION = "kms1."
# The format of the length of the encrypted data key, which comes first in a sealed secret.
_LENGTH = struct.Struct(">H")


class KmsSecretBox:
    """Encrypts secrets with a key of AWS KMS. KMS is called only when there is a secret to encrypt or decrypt."""

    def __init__(self, key_arn: str) -> None:
        self._key_arn = key_arn
        self._region = region_of_key(key_arn)
        self._opening = threading.Lock()
        self._client: Any = None

    def seal(self, secret: bytes, context: str) -> str:
        try:
            made = self._kms().generate_data_key(
                KeyId=self._key_arn, KeySpec="AES_256", EncryptionContext={CONTEXT_NAME: context}
            )
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"KMS makes no key for {context}: {error}") from error
        wrapped = made["CiphertextBlob"]
        sealed = AesSecretBox(partial(bytes, made["Plaintext"])).seal(secret, context)
        return _VERSION + base64.b64encode(_LENGTH.pack(len(wrapped)) + wrapped + sealed.encode()).decode()

    def open(self, sealed: str, context: str) -> bytes:
        try:
            data = base64.b64decode(sealed.removeprefix(_VERSION), validate=True)
            [length] = _LENGTH.unpack_from(data)
            end = _LENGTH.size + length
            key = self._kms().decrypt(
                KeyId=self._key_arn,
                CiphertextBlob=data[_LENGTH.size : end],
                EncryptionContext={CONTEXT_NAME: context},
            )["Plaintext"]
            return AesSecretBox(partial(bytes, key)).open(data[end:].decode(), context)
        except (BotoCoreError, ClientError, ValueError, struct.error) as error:
            raise Unavailable(f"A secret of {context} cannot be opened: {error}") from error

    def _kms(self) -> Any:
        with self._opening:
            if self._client is None:
                config = Config(
                    connect_timeout=CONNECT_TIMEOUT_SECONDS,
                    read_timeout=READ_TIMEOUT_SECONDS,
                    retries={"mode": "standard", "total_max_attempts": 3},
                )
                self._client = new_session().create_client("kms", config=config, region_name=self._region)
            return self._client


def region_of_key(arn: str) -> str:
    """Raises `BadSetting` if it is not the ARN of a key or an alias."""
    parts = arn.split(":", 5)
    if len(parts) != 6 or parts[2] != "kms" or not parts[3] or not parts[5].startswith(("key/", "alias/")):
        raise BadSetting(f"NAKADI_SINK_KEY is the ARN of a key in AWS KMS, and not {arn!r}")
    return parts[3]
