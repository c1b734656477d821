"""What is opened first."""

import pytest

from nakadi.app import core
from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.model.outcomes import BadSetting


def test_targets_in_aws_need_the_sdk(monkeypatch):
    """Without it, the broker does not start: deliveries would fail, and take their events for the culprits. (X38)"""
    settings = Settings(sink_targets=("arn:aws:sqs:*",))
    open_broker(settings).close()
    monkeypatch.setattr(core, "find_spec", lambda _: None)
    with pytest.raises(BadSetting, match=r"nakadi-serverless\[aws\]"):
        open_broker(settings)
    open_broker(Settings()).close()
