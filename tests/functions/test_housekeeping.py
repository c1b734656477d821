"""Housekeeping on a schedule."""

import json
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import boto3
import pytest
from moto.kinesis.models import kinesis_backends

from nakadi.app.engines import open_log_index, open_registry
from nakadi.common import chores
from nakadi.event_types.documents import event_type_from_document
from nakadi.event_types.housekeeping import Housekeeping
from nakadi.event_types.repository import EVENT_TYPES_KIND
from nakadi.event_types.table_lag import TableLagMonitor
from nakadi.event_types.table_states import TABLE_STATES_KIND, LastRun, TableState, table_state_body
from nakadi.model.log_index import ArchiveLocation, IndexHead, IndexingState, IndexSegment
from nakadi.ports.registry import PutDocument
from nakadi.subscriptions.api.stats import ObjectiveFigures, TroubledSubscriptions
from tests.support.aws import REGION

ACCOUNT = "123456789012"


@pytest.fixture
def deleted_event_type(functions):
    """A deleted event type that had events."""
    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201
    assert functions.invoke("publish", "apigateway/publish_batch")["statusCode"] == 200
    assert functions.invoke("event_types", "apigateway/delete_event_type")["statusCode"] == 200


@pytest.mark.usefixtures("deleted_event_type")
def test_clears_up_and_can_be_repeated(functions, capsys):
    """A round succeeds, and so does the next one. Metrics that are zero are not sent, because each would cost money."""
    for _ in range(2):
        capsys.readouterr()
        assert functions.invoke("housekeeping", "schedule/housekeeping") is None
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line for line in told if "_aws" in line] == []
        assert [line for line in told if line.get("level") in ("WARNING", "ERROR")] == []

    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201


def test_reports_how_late_the_indexer_is(functions, environment, capsys):
    """If the log is indexed by a function, every round reports how long the oldest event has waited to be indexed."""
    stream = boto3.client("kinesis", REGION)
    stream.create_stream(StreamName="live", ShardCount=1)
    environment.setenv("NAKADI_EVENT_LOG", f"kinesis://live?region={REGION}")
    environment.setenv("NAKADI_LOG_INDEX", "dynamodb://live")
    functions.invoke("housekeeping", "schedule/housekeeping")

    assert logged_index_lags(capsys) == [0]

    stream.put_record(StreamName="live", PartitionKey="t/0", Data=b"not indexed")
    [shard] = kinesis_backends[ACCOUNT][REGION].streams["live"].shards.values()
    [record] = shard.records.values()
    record.created_at_datetime -= timedelta(hours=1)
    functions.invoke("housekeeping", "schedule/housekeeping")

    [lag] = logged_index_lags(capsys)
    assert 3600 <= lag < 7200


@pytest.mark.parametrize("status", [200, 503])
def test_asks_what_its_rule_names_and_does_nothing_else(functions, capsys, status):
    """The rule that keeps the link to the streams active invokes the function with an address, which the function
    requests; any answer suffices.
    """
    asked = []

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/api/health/streams"
        assert functions.invoke("housekeeping", {"ask": address}) is None
        thread.join()

    assert asked == ["/api/health/streams"]
    assert "Rounds" not in capsys.readouterr().out


def test_does_not_tell_what_it_could_not_measure(functions, environment, capsys):
    """The function reports no figure for a stream that it cannot read; a missing figure raises the alarm, too."""
    environment.setenv("NAKADI_EVENT_LOG", f"kinesis://missing?region={REGION}")
    environment.setenv("NAKADI_LOG_INDEX", "dynamodb://live")
    functions.invoke("housekeeping", "schedule/housekeeping")

    assert logged_index_lags(capsys) == []


def test_reports_what_stalls_and_what_failed(functions, capsys, monkeypatch):
    """The function reports each figure that an alarm watches, unless it is zero. (T16, O12, O13)"""

    def run(_: Housekeeping):
        fail_one_chore()
        stall_subscription()

    def fail_one_chore():
        chores.run_and_log_failure("retention", "order.placed", lambda: 1 / 0)

    def stall_subscription():
        monkeypatch.setattr(TroubledSubscriptions, "stalled_ids", property(lambda _: ["a", "b"]))
        monkeypatch.setattr(TroubledSubscriptions, "late_ids", property(lambda _: ["b", "c"]))

    figures = {
        "a": ObjectiveFigures(burn_rate=7.5, pressure=2.5, is_shown=False),
        "b": ObjectiveFigures(burn_rate=0, pressure=0, is_shown=True),
    }
    monkeypatch.setattr(TroubledSubscriptions, "objectives", property(lambda _: figures))
    monkeypatch.setattr(TableLagMonitor, "greatest_burn_rate", 6.5)
    monkeypatch.setattr(TableLagMonitor, "greatest_pressure", 1.5)
    monkeypatch.setattr(Housekeeping, "run", run)
    functions.invoke("housekeeping", "schedule/housekeeping")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [line["FailedChores"] for line in told if "FailedChores" in line] == [[1]]
    assert [line["StalledSubscriptions"] for line in told if "StalledSubscriptions" in line] == [[3]]
    assert [line["SubscriptionBurnRate"] for line in told if "SubscriptionBurnRate" in line] == [[7.5]]
    assert [line["TableBurnRate"] for line in told if "TableBurnRate" in line] == [[6.5]]
    assert [line["TablePressure"] for line in told if "TablePressure" in line] == [[1.5]]
    shown = [(line["subscription"], line["SubscriptionPressure"]) for line in told if "SubscriptionPressure" in line]
    assert shown == [("b", [0.0])], "a subscription that asks for it, also while nothing waits"


def logged_index_lags(capsys):
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line["IndexLag"][0] for line in told if "IndexLag" in line]


def test_starts_the_job_when_archived_events_wait_for_their_table(functions, environment, tmp_path, capsys):
    """Housekeeping starts the job once, and only if there are new events; meanwhile, it reports how long they have
    waited. It is no failure if the job already runs.
    """
    file = f"sqlite:///{tmp_path / 'events.db'}"
    environment.setenv("NAKADI_LOG_INDEX", file)
    environment.setenv("NAKADI_TABLE_JOB", "nakadi-test-compaction")
    glue = boto3.client("glue", REGION)
    glue.create_job(Name="nakadi-test-compaction", Role="any", Command={"Name": "glueetl"})
    functions.invoke("housekeeping", "schedule/housekeeping")
    assert glue.get_job_runs(JobName="nakadi-test-compaction")["JobRuns"] == []

    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201
    with closing(open_registry("dynamodb://live")) as registry:
        [timeline] = [
            event_type_from_document(each).timeline
            for each in registry.list(EVENT_TYPES_KIND)
            if not each.key.startswith("nakadi.")
        ]
    with closing(open_log_index(file)) as index:
        index.create_topic(timeline.topic, 1)
        an_hour_ago = round((time.time() - 3600) * 1e6)
        segment = IndexSegment(
            state_before=IndexingState(),
            offset_count=1,
            first_stored_at=an_hour_ago,
            last_stored_at=an_hour_ago,
            location=ArchiveLocation("log/one", 0, 1),
        )
        assert index.advance_head(timeline.topic, 0, 0, IndexHead(IndexingState(next_offset=1)), segment)
    capsys.readouterr()
    for _ in range(2):
        functions.invoke("housekeeping", "schedule/housekeeping")

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["TableLag"][0] // 600 for line in told if "TableLag" in line] == [6, 6]
    assert [line for line in told if "TableLatency" in line] == [], "no job has changed a table"
    assert [line for line in told if "FailedChores" in line] == []
    assert len(glue.get_job_runs(JobName="nakadi-test-compaction")["JobRuns"]) == 1


@pytest.mark.parametrize(("minutes_ago", "reported"), [(1, [4242]), (11, [])])
def test_reports_how_long_events_took_to_come_into_tables(
    functions, environment, tmp_path, capsys, minutes_ago, reported
):
    """The rounds after a commit of a table report its latency, and what is wrong with its events, except late ones.
    After a while they stop, so the alarm ends.
    """
    environment.setenv("NAKADI_LOG_INDEX", f"sqlite:///{tmp_path / 'events.db'}")
    environment.setenv("NAKADI_TABLE_JOB", "nakadi-test-compaction")
    functions.invoke("housekeeping", "schedule/housekeeping")
    assert functions.invoke("event_types", "apigateway/create_event_type")["statusCode"] == 201
    with closing(open_registry("dynamodb://live")) as registry:
        [event_type] = [
            event_type_from_document(each)
            for each in registry.list(EVENT_TYPES_KIND)
            if not each.key.startswith("nakadi.")
        ]
        state = TableState(
            table_name="t",
            next_offsets={},
            row_count=1,
            misfit_count=0,
            unreadable_count=0,
            updated_at=datetime.now(UTC) - timedelta(minutes=minutes_ago),
            latency_seconds=4242.3,
            last_run=LastRun(
                ended_at=datetime.now(UTC) - timedelta(minutes=minutes_ago),
                defects={"late": 1, "misfit": 2, "unmet": 4240},
            ),
        )
        registry.write(PutDocument(TABLE_STATES_KIND, event_type.id, table_state_body(state)))
    capsys.readouterr()
    functions.invoke("housekeeping", "schedule/housekeeping")

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for name in ("TableLatency", "TableDefects"):
        assert [line[name][0] for line in told if name in line] == reported
