"""TLS with a certificate that the process creates itself. The certificate encrypts the traffic from the load balancer,
but proves no identity.

A load balancer accepts any certificate of its targets. Encryption keeps others from reading the traffic; only the
security group ensures that a target is a task.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nakadi-streaming")])

# The validity of a certificate before and after its creation: clocks may differ, and no task runs for a year.
BEFORE, AFTER = timedelta(days=1), timedelta(days=3650)


def tls(now: datetime | None = None) -> ssl.SSLContext:
    """A server-side TLS context with a new key, which is never in a file system."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with os.fdopen(os.memfd_create("certificate"), "wb") as memory:
        memory.write(_certificate(now or datetime.now(UTC)))
        memory.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
    return context


def _certificate(now: datetime) -> bytes:
    """A new key and the certificate that it signs, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(NAME)
        .issuer_name(NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + AFTER)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + certificate.public_bytes(serialization.Encoding.PEM)
