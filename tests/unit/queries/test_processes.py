"""The environment of query processes."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from nakadi.common.waiting import run_blocking
from nakadi.model.outcomes import Invalid
from nakadi.queries.processes import QueryLimits, QueryProcesses, TablesPlace

LIMITS = QueryLimits(at_once=1, seconds=1, megabytes=1, rows=1)

ENDLESS = "select max(hash(a.range + b.range)) from range(10000000000) a, range(1000000) b"

REST = "https://catalog.example.org?warehouse=events"

AWS = {
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "HTTPS_PROXY": "http://proxy:3128",
    "NO_PROXY": "localhost",
    "SSL_CERT_FILE": "/etc/ssl/own.pem",
}

ENVIRON = {
    "PATH": "/bin",
    "HOME": "/root",
    "NAKADI_SINK_KEY": "secret",
    "NAKADI_CATALOG_TOKEN": "secret",
    "DATABASE_PASSWORD": "secret",
    "AWS_LAMBDA_RUNTIME_API": "127.0.0.1:9001",
    **AWS,
}


@pytest.mark.parametrize(
    ("tables", "place"),
    [
        ("", None),
        ("glue", "glue"),
        ("s3://events/tables", "s3://events/tables"),
        (REST, REST),
        ("data/tables", str(Path("data/tables").absolute())),
        ("/var/lib/nakadi/tables", "/var/lib/nakadi/tables"),
        ("file:///var/lib/nakadi/tables", "file:///var/lib/nakadi/tables"),
    ],
)
def test_a_child_finds_tables_from_its_own_folder(tables, place):
    """A relative folder is relative to the broker's working folder, not to the one in which the query runs. (Q15)"""
    assert TablesPlace(tables).for_child() == place


@pytest.mark.parametrize(
    ("tables", "more"),
    [
        ("", {}),
        ("data/tables", {}),
        ("file:///var/lib/nakadi/tables", {}),
        ("s3://events/tables", AWS),
        ("glue", AWS),
        (REST, {**AWS, "NAKADI_CATALOG_TOKEN": "secret"}),
    ],
)
def test_a_child_gets_what_leads_to_its_tables(tables, more):
    """Only a child whose tables may be in a bucket gets AWS keys and proxies, and only one with a REST catalog gets its
    token. None gets the address at which a function on AWS receives requests. (Q15)
    """
    processes = QueryProcesses(LIMITS, broker_url="", tables=TablesPlace(tables), environ=ENVIRON)
    assert {**processes._environ, "PYTHONPATH": ""} == {"PATH": "/bin", "HOME": "/root", "PYTHONPATH": "", **more}
    processes.close()


def test_a_child_has_its_time():
    """A child that does not end in its time is killed, even if its query may take longer. (Q13)"""
    limits = QueryLimits(at_once=1, seconds=3600, megabytes=512, rows=1, child_seconds=0.1)
    processes = QueryProcesses(limits, broker_url="", tables=TablesPlace(""), environ=os.environ)
    with closing(processes), pytest.raises(Invalid, match=r"more than 3600 seconds"):
        run_blocking(processes.answer(ENDLESS, None, lambda: False))
