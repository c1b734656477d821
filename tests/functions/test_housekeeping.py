"""Housekeeping on a schedule."""

import json
from datetime import timedelta

import boto3
import pytest
from moto.kinesis.models import kinesis_backends

from tests.support.aws import REGION

ACCOUNT = "123456789012"


@pytest.fixture
def deleted(functions):
    """An event type that was deleted, with events."""
    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201
    assert functions.invoke("publish", "apigateway/publish_batch")["statusCode"] == 200
    assert functions.invoke("event_types", "apigateway/delete_event_type")["statusCode"] == 200


@pytest.mark.usefixtures("deleted")
def test_clears_up_and_can_be_repeated(functions, capsys):
    """A round looks after everything, tells that it was made, and harms nothing when it is made again."""
    for _ in range(2):
        capsys.readouterr()
        assert functions.invoke("housekeeping", "schedule/housekeeping") is None
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        metrics = [line for line in told if "_aws" in line]
        assert [line["Rounds"] for line in metrics if "Rounds" in line] == [[1]]
        assert [line["StalledSubscriptions"] for line in metrics if "StalledSubscriptions" in line] == [[0]]
        assert [line["FailedChores"] for line in metrics if "FailedChores" in line] == [[0]]
        assert [line for line in told if line.get("level") in ("WARNING", "ERROR")] == []

    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201


def test_tells_how_late_the_indexer_is(functions, environment, capsys):
    """With a log that is indexed from outside, every round tells how long its oldest event waits to be indexed."""
    stream = boto3.client("kinesis", REGION)
    stream.create_stream(StreamName="live", ShardCount=1)
    environment.setenv("NAKADI_EVENT_LOG", f"kinesis://live?region={REGION}")
    environment.setenv("NAKADI_LOG_INDEX", "dynamodb://live")
    functions.invoke("housekeeping", "schedule/housekeeping")

    assert lags(capsys) == [0]

    stream.put_record(StreamName="live", PartitionKey="t/0", Data=b"not indexed")
    [shard] = kinesis_backends[ACCOUNT][REGION].streams["live"].shards.values()
    [record] = shard.records.values()
    record.created_at_datetime -= timedelta(hours=1)
    functions.invoke("housekeeping", "schedule/housekeeping")

    [lag] = lags(capsys)
    assert 3600 <= lag < 7200


def test_does_not_tell_what_it_could_not_measure(functions, environment, capsys):
    """A stream that does not answer has no figure, which raises the alarm too."""
    environment.setenv("NAKADI_EVENT_LOG", f"kinesis://missing?region={REGION}")
    environment.setenv("NAKADI_LOG_INDEX", "dynamodb://live")
    functions.invoke("housekeeping", "schedule/housekeeping")

    assert lags(capsys) == []


def lags(capsys):
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line["IndexLag"][0] for line in told if "IndexLag" in line]
