"""The broker and dead letters in the console."""

import os

import pytest


@pytest.mark.long
def test_broker(failure, sentence):
    """Each sentence in the module's script names a test, which passes in the browser."""
    if os.environ.get("CONSOLE_BROKER") and sentence.startswith("metrics are shown as they are counted"):
        pytest.skip("on AWS each function counts for itself, and CloudWatch adds up")
    assert not failure, failure
