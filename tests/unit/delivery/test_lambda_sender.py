"""The sender that invokes a function with a batch, and interprets the function's answer."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from infra.laptop.kinesis_local import free_port
from nakadi.delivery.answers import Answer, Verdict
from nakadi.delivery.aws_calls import CallFailed
from nakadi.delivery.aws_clients import AwsClients
from nakadi.delivery.lambda_sender import LambdaSender, answer_of_failed_events, failed_identifiers
from nakadi.delivery.targets import TargetRules
from nakadi.model.events import Record
from nakadi.model.sink import SinkFormat, SinkType
from tests.support.aws_targets import LambdaError, a_function
from tests.support.chunks import a_chunk
from tests.support.sinks import a_sink, an_attempt

ARN = "arn:aws:lambda:eu-central-1:123456789012:function:ship"


def some_events(*eids):
    records = [Record(json.dumps({"n": n, "metadata": {"eid": eid}}).encode()) for n, eid in enumerate(eids)]
    return a_chunk(*records).run_from_offset(0)


def invoke(handler, *runs, sink_format=SinkFormat.NAKADI, timeout_seconds=20, allowed="*"):
    async def deliver(arn, clients):
        sender = LambdaSender(TargetRules((allowed,)), lambda: clients, ThreadPoolExecutor(1))
        sink = a_sink(SinkType.LAMBDA, arn, sink_format)
        try:
            return await sender.deliver(an_attempt(sink, *runs, timeout_seconds=timeout_seconds))
        finally:
            await sender.close()

    with a_function(handler) as arn, closing(AwsClients()) as clients:
        return asyncio.run(deliver(arn, clients))


def test_a_function_gets_a_batch_as_a_stream_sends_it():
    """(X39)"""
    events = []
    answer = invoke(lambda event, _: events.append(event), some_events("a", "b"))
    assert answer == Answer(200, verdict=Verdict.DELIVERED)
    [event] = events
    assert [each["metadata"]["eid"] for each in event["events"]] == ["a", "b"]
    assert event["cursor"]["cursor_token"] == "msg_1"


def test_a_function_gets_cloudevents_and_trials():
    """(X7, X39)"""
    events = []
    invoke(lambda event, _: events.append(event), some_events("a"), sink_format=SinkFormat.CLOUDEVENTS)
    assert invoke(lambda event, _: events.append(event)).verdict is Verdict.DELIVERED
    [cloud_event], trial = events
    assert (cloud_event["id"], cloud_event["data"]["n"]) == ("a", 0)
    assert trial["events"] == []


def test_a_function_that_names_what_failed_gets_the_rest_again():
    """(X40)"""
    answer = invoke(lambda *_: {"batchItemFailures": [{"itemIdentifier": "b"}]}, some_events("a", "b", "c"))
    assert (answer.verdict, answer.delivered) == (Verdict.FAILED, 1)


def test_a_function_that_raises_fails_the_batch():
    """(X40)"""
    answer = invoke(lambda *_: 1 // 0, some_events("a", "b"))
    assert (answer.verdict, answer.delivered) == (Verdict.FAILED, None)
    assert "ZeroDivisionError" in answer.text


@pytest.mark.parametrize(
    ("status", "code", "verdict"),
    [
        (429, "TooManyRequestsException", Verdict.LATER),
        (404, "ResourceNotFoundException", Verdict.LATER),
        (403, "AccessDeniedException", Verdict.LATER),
        (500, "ServiceException", Verdict.LATER),
        (413, "RequestTooLargeException", Verdict.FAILED),
    ],
)
def test_only_what_the_service_refuses_counts_against_events(status, code, verdict):
    """(X15, X41)"""

    def fail(*_):
        raise LambdaError(status, code)

    answer = invoke(fail, some_events("a"))
    assert (answer.status, answer.verdict) == (status, verdict)
    assert code in answer.text


def test_a_function_that_takes_too_long_counts():
    """(X15, X41)"""
    done = threading.Event()
    try:
        answer = invoke(lambda *_: done.wait(20), some_events("a"), timeout_seconds=0.2)
    finally:
        done.set()
    assert (answer.status, answer.verdict) == (None, Verdict.FAILED)


def test_a_function_that_is_not_reached_does_not_count(monkeypatch):
    """(X15, X41)"""

    async def deliver(clients):
        sender = LambdaSender(TargetRules(("*",)), lambda: clients, ThreadPoolExecutor(1))
        return await sender.deliver(an_attempt(a_sink(SinkType.LAMBDA, ARN), some_events("a")))

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://127.0.0.1:{free_port()}")
    with closing(AwsClients()) as clients:
        answer = asyncio.run(deliver(clients))
    assert (answer.status, answer.verdict) == (None, Verdict.LATER)


def test_credentials_are_looked_for_until_there_are_some(monkeypatch, tmp_path):
    """The sender looks for credentials until it finds some; meanwhile, events wait, and no restart is needed. (X15,
    X41)
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with closing(AwsClients()) as clients:
        with pytest.raises(CallFailed, match="credentials"):
            clients.call("sqs", "eu-central-1", 1, lambda _: None)
        (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text(
            "[default]\naws_access_key_id = nobody\naws_secret_access_key = nothing\n"
        )
        assert clients.call("sqs", "eu-central-1", 1, lambda client: client.meta.region_name) == "eu-central-1"


def test_a_function_that_the_settings_do_not_allow_is_not_invoked():
    """(X38)"""
    events = []
    answer = invoke(lambda event, _: events.append(event), some_events("a"), allowed="arn:aws:sqs:*")
    assert (answer.verdict, events) == (Verdict.LATER, [])


@pytest.mark.parametrize(
    ("result", "delivered"),
    [
        (b"null", "all"),
        (b'"fine"', "all"),
        (b"not JSON", "all"),
        (b"{}", "all"),
        (b'{"batchItemFailures": []}', "all"),
        (b'{"batchItemFailures": null}', "all"),
        (b'{"batchItemFailures": [{"itemIdentifier": "c"}, {"itemIdentifier": "b"}]}', 1),
        (b'{"batchItemFailures": [{"itemIdentifier": "2"}]}', 2),
        (b'{"batchItemFailures": [{"itemIdentifier": 0}]}', 0),
        (b'{"batchItemFailures": [{"itemIdentifier": "x"}, {"itemIdentifier": "b"}]}', None),
        (b'{"batchItemFailures": [{"itemIdentifier": ""}]}', None),
        (b'{"batchItemFailures": [{"id": "a"}]}', None),
        (b'{"batchItemFailures": ["a"]}', None),
        (b'{"batchItemFailures": "a"}', None),
    ],
)
def test_what_a_function_returns(result, delivered):
    """If the function's answer names no known event, nothing counts as delivered. (X40)"""
    failed = failed_identifiers(result)
    assert bool(failed) == (delivered != "all")
    if failed:
        answer = answer_of_failed_events(failed, ["a", "b", "c"])
        assert (answer.verdict, answer.delivered) == (Verdict.FAILED, delivered)


def test_a_name_that_may_mean_two_events_means_the_first():
    """A function names a failed event by its id or its position. If a name fits two events, the first of them and all
    events after it count as not delivered. (X40)
    """
    for eids, failed, delivered in ((["2", "b", "c"], "2", 0), (["a", "b", "1"], "1", 1), (["a", "a", "b"], "a", 0)):
        assert answer_of_failed_events([failed], eids).delivered == delivered


@pytest.mark.parametrize(("eid", "named"), [(1, 1), (1, "1"), (["x"], "0"), ({}, "0"), (None, "0")])
def test_an_id_that_is_no_text_is_no_obstacle(eid, named):
    """The ids of events of the category `undefined` may be of any type. (X40)"""
    answer = invoke(lambda *_: {"batchItemFailures": [{"itemIdentifier": named}]}, some_events(eid, "b", "c"))
    assert (answer.verdict, answer.delivered) == (Verdict.FAILED, 0)
