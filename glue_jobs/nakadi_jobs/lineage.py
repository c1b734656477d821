"""Tells an OpenLineage service which run filled which table from which event type.

OpenLineage's own client makes and sends the events; the extra `[lineage]` installs it. The client reads the key of the
service from `OPENLINEAGE_API_KEY`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from msgspec import Struct
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import output_statistics_output_dataset
from openlineage.client.uuid import generate_new_uuid

from nakadi.event_types.table_runs import TableRun

PRODUCER = "https://nakadi.io"
"""The URI by which events name the program that made them."""

TIMEOUT_SECONDS = 5.0

RETRY = {"total": 2, "backoff_factor": 0.5}
"""How often the client repeats a request, and after how many seconds: the run waits for it."""


class FilledTable(Struct, frozen=True):
    """The result of a run: the event type that it read, and the URL of the table that it filled."""

    run: TableRun
    event_type: str
    table: str


def send_lineage(url: str, namespace: str, filled: Sequence[FilledTable]) -> None:
    """Send the beginning and the end of each run. Raises the errors of the client, which are of many kinds."""
    key = os.environ.get("OPENLINEAGE_API_KEY")
    auth = {"auth": {"type": "api_key", "api_key": key}} if key else {}
    transport = {"type": "http", "url": url, "timeout": TIMEOUT_SECONDS, "retry": RETRY, **auth}
    client = OpenLineageClient(config={"transport": transport})
    try:
        for each in filled:
            for event in _make_events(each, namespace):
                client.emit(event)
    finally:
        client.close(TIMEOUT_SECONDS)


def _make_events(filled: FilledTable, namespace: str) -> Iterator[RunEvent]:
    run, place = Run(runId=str(generate_new_uuid())), urlsplit(filled.table)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=filled.run.row_count, size=filled.run.bytes_written
    )
    for state, moment in ((RunState.START, filled.run.started_at), (RunState.COMPLETE, filled.run.ended_at)):
        yield RunEvent(
            eventType=state,
            eventTime=moment.isoformat(),
            run=run,
            job=Job(namespace=namespace, name=f"{filled.run.job}.{filled.event_type}"),
            inputs=[InputDataset(namespace=namespace, name=filled.event_type)],
            outputs=[
                OutputDataset(
                    # This is the form in which OpenLineage names folders and buckets.
                    namespace=f"{place.scheme}://{place.netloc}" if place.netloc else "file",
                    name=place.path,
                    outputFacets={"outputStatistics": statistics} if state is RunState.COMPLETE else {},
                )
            ],
            producer=PRODUCER,
        )
