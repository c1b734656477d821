"""Secrets that are sealed with a key in KMS."""

import pytest

from nakadi.engines.common.kms_box import KmsSecretBox, region_of_key
from nakadi.model.outcomes import BadSetting, Unavailable
from tests.support.aws import REGION
from tests.support.aws_targets import ACCOUNT, a_client, aws_over_http


@pytest.fixture(scope="module")
def kms():
    with aws_over_http() as endpoint, a_client("kms", endpoint) as client:
        yield client


def a_key(kms):
    return kms.create_key()["KeyMetadata"]["Arn"]


def test_what_was_sealed_is_opened_with_the_same_key_and_context_only(kms):
    """What was sealed is opened only with the same key and context, and may be longer than what KMS itself encrypts.
    (X47)
    """
    key = a_key(kms)
    box, secret = KmsSecretBox(key), b"secret" * 2000
    sealed = box.seal(secret, "here")
    assert KmsSecretBox(key).open(sealed, "here") == secret
    assert box.seal(secret, "here") != sealed
    assert "secret" not in sealed
    broken = sealed[:-6] + ("AAAAAA" if sealed[-6:] != "AAAAAA" else "BBBBBB")
    for opener, text, context in (
        (KmsSecretBox(a_key(kms)), sealed, "here"),
        (box, sealed, "there"),
        (box, broken, "here"),
        (box, "kms1.", "here"),
        (box, "", ""),
    ):
        with pytest.raises(Unavailable):
            opener.open(text, context)


@pytest.mark.usefixtures("kms")
def test_a_key_that_is_missing_seals_nothing():
    """(X47)"""
    box = KmsSecretBox(f"arn:aws:kms:{REGION}:{ACCOUNT}:key/00000000-0000-0000-0000-000000000000")
    with pytest.raises(Unavailable, match="KMS"):
        box.seal(b"secret", "here")


@pytest.mark.parametrize("text", ["alias/a", "arn:aws:s3:::bucket", "arn:aws:kms:::key/1", "arn:aws:kms:a:1:grant/1"])
def test_a_key_is_named_by_its_arn(text):
    """(X47)"""
    assert region_of_key(f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1") == REGION
    with pytest.raises(BadSetting, match="NAKADI_SINK_KEY"):
        region_of_key(text)
