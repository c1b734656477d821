"""The library that receivers use verifies the signatures of deliveries."""

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from nakadi.delivery.signing import generate_secret, is_secret, signature_headers
from nakadi.model.sink import SigningSecret

BODY = '{"events":[{"text":"grün"}]}'.encode()


def test_the_published_library_verifies_a_signature():
    """(X3)"""
    secret, other = generate_secret(), generate_secret()
    headers = signature_headers("msg_1", BODY, [SigningSecret(secret)], datetime.now(UTC))
    assert Webhook(secret).verify(BODY, dict(headers)) == {"events": [{"text": "grün"}]}
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(BODY, dict(headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY + b" ", dict(headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY, {**headers, "webhook-id": "msg_2"})


def test_two_secrets_sign_until_the_old_one_expires():
    """(X4)"""
    new, old, now = generate_secret(), generate_secret(), datetime.now(UTC)
    secrets = [SigningSecret(new), SigningSecret(old, now + timedelta(seconds=1))]
    both = signature_headers("msg_1", BODY, secrets, now)
    assert Webhook(new).verify(BODY, dict(both)) == Webhook(old).verify(BODY, dict(both))
    later = signature_headers("msg_1", BODY, secrets, now + timedelta(seconds=2))
    assert Webhook(new).verify(BODY, dict(later))
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(BODY, dict(later))


def test_the_example_of_the_scheme():
    """The broker computes the signature of the example in the Standard Webhooks specification."""
    headers = signature_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        b'{"test": 2432232314}',
        [SigningSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
        datetime.fromtimestamp(1614265330, UTC),
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("whsec_" + "A" * 32, True),
        ("whsec_" + "A" * 28, False),
        ("A" * 32, False),
        ("whsec_" + "A" * 31, False),
        ("whsec_" + "A" * 92, False),
        ("whsec_ü" + "A" * 31, False),
        ("whsec_", False),
    ],
)
def test_secrets_have_24_to_64_bytes(text, is_one):
    assert is_secret(text) is is_one
