"""Documents as they are stored: earlier and later versions of the broker read them, too.

They are written from the values of the model, under the names of its fields. A field that is renamed keeps its stored
name.
"""

import json

import pytest

from nakadi.engines.common.assignment_json import assignment_from_json, assignment_json
from nakadi.engines.common.log_index_json import topic_from_json, topic_json
from nakadi.event_types.documents import event_type_body, event_type_from_document
from nakadi.event_types.measured_statistics import measured_statistics_body, measured_statistics_from_body
from nakadi.event_types.table_runs import table_runs_body, table_runs_from_body
from nakadi.event_types.table_states import table_state_body, table_state_from_body
from nakadi.ports.registry import Document
from nakadi.subscriptions.api.repository import subscription_body, subscription_from_document

NOON = "2026-11-21T12:00:00Z"
LATER = "2026-11-21T12:00:00.001000Z"

AUTHORIZATION = {"admins": [["user", "ann"]], "readers": [["*", "*"]], "writers": []}
STATISTICS = {"messages_per_minute": 1, "message_size": 2, "read_parallelism": 3, "write_parallelism": 4}


def a_stored_timeline(order, **fields):
    timeline = {
        "id": f"t-{order}",
        "order": order,
        "storage_id": "default",
        "topic": f"topic-{order}",
        "partitions": 2,
        "created_at": NOON,
        "switched_at": NOON,
        "cleaned_up_at": None,
        "latest_positions": None,
        "deleted": False,
        "after_loss": False,
        "adopted": False,
    }
    return timeline | fields


EVENT_TYPE = {
    "id": "e",
    "owning_application": "shop",
    "category": "data",
    "schema": {"type": "json_schema", "text": '{"é": 1}', "version": "1.2.3", "created_at": LATER},
    "enrichment_strategies": ["metadata_enrichment"],
    "partition_strategy": "hash",
    "partition_key_fields": ["a", "b"],
    "ordering_key_fields": ["c"],
    "ordering_instance_ids": ["d"],
    "cleanup_policy": "compact_and_delete",
    "compatibility_mode": "none",
    "default_statistic": STATISTICS,
    "retention_time": 86_400_000,
    "authorization": AUTHORIZATION,
    "audience": "external-public",
    "event_owner_selector": {"type": "path", "name": "n", "value": "v"},
    "deduplication": {"window_seconds": 300},
    "annotations": {"a": "1", "b": None},
    "labels": {"c": "2"},
    "created_at": NOON,
    "updated_at": LATER,
    "timelines": [
        a_stored_timeline(1, cleaned_up_at=LATER, latest_positions={"0": 7, "1": -1}, deleted=True),
        a_stored_timeline(2, after_loss=True),
    ],
    "switching_to": a_stored_timeline(3, switched_at=None, adopted=True),
}

SUBSCRIPTION = {
    "owning_application": "shop",
    "event_types": ["e"],
    "consumer_group": "g",
    "read_from": "cursors",
    "initial_cursors": [["e", "0", "001-0001-7"]],
    "authorization": AUTHORIZATION,
    "annotations": {"a": None},
    "labels": {"b": "1"},
    "reads": ["customer.id"],
    "projection": True,
    "declared_versions": {"e": "1.2.3"},
    "objective": {"percent": 99.5, "within_seconds": 30, "set_at": NOON},
    "created_at": NOON,
    "updated_at": LATER,
}

TOPIC = {
    "partitions": 2,
    "sealed": True,
    "oldest": {"0": 3},
    "compacted": {"1": 4},
    "continues": "before",
    "continued_in": "behind",
    "behind": ["lost"],
}

ASSIGNMENT = {
    "initialised": True,
    "entries": [["e", "0", "s-1", "s-2", 3, [1, 9], ["r", 1, 8, ["k"]]], ["e", "1", None, None, 0, None]],
    "sessions": [
        ["s-1", "process", NOON, 60.0, [["e", "0"]]],
        ["s-2", "process", NOON, 60.0, [], True, 2, 1, NOON, 30.0],
    ],
    "timed_out": [["s-0", NOON, 2.5]],
    "standstills": [[["e", "0"], {"timeline": 1, "offset": 7}, 3]],
    "reset": ["x", "2026-11-21T12:00:00.001000+00:00", "2026-11-21T12:00:00+00:00"],
    "wish": {"redrive": ["e", "0", "k"]},
    "claimed": True,
    "ended": ["y", "2026-11-21T12:00:00+00:00", "it failed", {"offsets": {"e": {"0": [1, 7]}}}],
}

MEASURED = {"statistic": STATISTICS, "recommended_partitions": 5, "since": NOON, "until": LATER}

TABLE_STATE = {
    "table": "e",
    "next": {"topic/0": 4},
    "rows": 9,
    "misfits": 2,
    "missing": 1,
    "updated_at": NOON,
    "latency": 1.5,
    "known_misfits": 1,
    "known_missing": 1,
    "last_run": {"ended_at": NOON, "defects": {"late": 1, "misfit": 2}},
    "freshness": {"within_seconds": 3600, "since": NOON, "counts": [[29_395_440, 5, 1]]},
}

TABLE_RUNS = {
    "runs": [
        {
            "job": "follow",
            "started_at": NOON,
            "ended_at": LATER,
            "row_count": 9,
            "missing_count": 1,
            "misfit_count": 2,
            "misfit_reasons": [{"rule": "bigint", "path": "a[].b", "event_count": 2}],
            "expectations": [{"annotation": "nakadi.io/expect", "condition": "a > 0", "unmet_count": 4}],
            "late_count": None,
            "duplicate_count": 3,
            "lag_seconds": 1.5,
            "seconds": 2.5,
            "bytes_read": 800,
            "bytes_written": 500,
        }
    ]
}

BROUGHT_BACK = {
    "an event type": (EVENT_TYPE, lambda body: event_type_body(event_type_from_document(Document("name", body, 7)))),
    "a subscription": (
        SUBSCRIPTION,
        lambda body: subscription_body(subscription_from_document(Document("id", body, 7))),
    ),
    "a topic": (TOPIC, lambda body: json.loads(topic_json(topic_from_json(json.dumps(body))))),
    "an assignment": (ASSIGNMENT, lambda body: json.loads(assignment_json(assignment_from_json(json.dumps(body), 7)))),
    "measured statistics": (MEASURED, lambda body: measured_statistics_body(measured_statistics_from_body(body))),
    "the runs that filled a table": (TABLE_RUNS, lambda body: table_runs_body(table_runs_from_body(body))),
    "the state of a table": (TABLE_STATE, lambda body: table_state_body(table_state_from_body(body))),
}


@pytest.mark.parametrize(("stored", "read_and_written"), BROUGHT_BACK.values(), ids=BROUGHT_BACK)
def test_what_is_stored_keeps_its_names_and_its_form(stored, read_and_written):
    """A document that is read and written again stays unchanged: no field name and no format of a value has changed."""
    assert json.loads(json.dumps(read_and_written(stored))) == stored


@pytest.mark.parametrize(("stored", "read_and_written"), BROUGHT_BACK.values(), ids=BROUGHT_BACK)
def test_times_with_an_offset_are_read(stored, read_and_written):
    """Times that end with +00:00 instead of Z, as earlier versions wrote them, are read."""
    earlier = json.loads(json.dumps(stored).replace('Z"', '+00:00"'))
    assert json.loads(json.dumps(read_and_written(earlier))) == stored
