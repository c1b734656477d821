"""Housekeeping on a schedule."""

import json

import pytest


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
        assert [line["StalledSubscriptions"] for line in metrics if "Rounds" not in line] == [[0]]
        assert [line for line in told if line.get("level") in ("WARNING", "ERROR")] == []

    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201
