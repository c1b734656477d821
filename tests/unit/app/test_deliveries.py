"""The conditions under which deliveries begin."""

from contextlib import closing

import pytest

from nakadi.app import deliveries
from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.model.outcomes import BadSetting


def test_targets_in_aws_need_the_sdk(monkeypatch):
    """A broker whose settings allow targets in AWS does not start without the AWS SDK: every delivery to such a target
    would fail, and its events would be blamed. (X38)
    """
    with closing(open_broker(Settings(sink_targets=("arn:aws:sqs:*",)))) as broker:
        assert broker.side_tasks
        monkeypatch.setattr(deliveries, "find_spec", lambda _: None)
        with pytest.raises(BadSetting, match=r"nakadi-serverless\[aws\]"):
            _ = broker.side_tasks
    with closing(open_broker(Settings())) as broker:
        assert broker.side_tasks
