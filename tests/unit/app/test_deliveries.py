"""The conditions under which deliveries begin."""

from contextlib import closing

import pytest

from nakadi.app import deliveries
from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.model.outcomes import BadSetting


def test_targets_in_aws_need_the_sdk(monkeypatch):
    """Without the SDK, the broker does not start: deliveries would fail, and their events would be blamed. (X38)"""
    with closing(open_broker(Settings(sink_targets=("arn:aws:sqs:*",)))) as broker:
        assert broker.side_tasks
        monkeypatch.setattr(deliveries, "find_spec", lambda _: None)
        with pytest.raises(BadSetting, match=r"nakadi-serverless\[aws\]"):
            _ = broker.side_tasks
    with closing(open_broker(Settings())) as broker:
        assert broker.side_tasks
