"""If a store fails, clients learn nothing about files, statements and tables; operators find all of them in the log."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import httpx
import pytest

from nakadi import openapi
from nakadi.local import Broker
from nakadi.openapi import ApiOperation
from nakadi.openapi.examples import example_of_parameter, examples_of_media_type
from tests.support.api import create_event_type
from tests.support.patience import PATIENCE

# These operations need neither the registry nor a log.
WITHOUT_STORE = {
    *("get_health", "get_metrics", "get_version", "get_openapi", "get_docs", "list_partition_strategies"),
    *("list_enrichment_strategies", "list_validation_strategies"),
}


@pytest.fixture
def broken_broker(tmp_path):
    """A broker that has worked before the tables in its data file were dropped."""
    path = tmp_path / "secret.db"
    with Broker(registry=f"sqlite:///{path}", event_log=f"sqlite:///{path}", cache_seconds=0) as broker:
        with httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
            create_event_type(api, name="order.created")
        yield broker, path


def lose_the_tables(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        for (name,) in tables.fetchall():
            connection.execute(f"DROP TABLE {name}")


def answer_text(operation: ApiOperation, broker: Broker) -> httpx.Response:
    """The answer to the example request of an operation."""
    path = operation.path
    for each in operation.parameters:
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", example_of_parameter(each))
    described = operation.description.get("requestBody")
    body = None if described is None else examples_of_media_type(described["content"]["application/json"])[0][1]
    return httpx.request(operation.method, broker.url + path, json=body, timeout=PATIENCE)


def test_no_operation_reports_what_happened_inside(broken_broker, caplog):
    """When the store fails, operations that need it are answered with 503 and a Problem without internal details; the
    log has the Problem's ticket and the cause.
    """
    broker, path = broken_broker
    lose_the_tables(path)
    failed = 0
    for name, operation in openapi.operations().items():
        answer = answer_text(operation, broker)

        for secret in ("no such table", "secret.db", "SELECT", "sqlite", "documents", "Traceback"):
            assert secret not in answer.text or name in WITHOUT_STORE, f"{name}: {answer.text}"
        if answer.status_code >= 500:
            failed += 1
            detail = answer.json()["detail"]
            assert answer.status_code == 503, f"{name}: {detail}"
            for ticket in re.findall(r"ETI\w+", detail):
                assert ticket in caplog.text
    assert failed > 20
    assert "no such table" in caplog.text
