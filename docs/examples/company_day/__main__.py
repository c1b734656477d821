"""A small company's day: its events are published, queried with SQL meanwhile, stored in tables, read by Spark, and
partly erased.

    make run                                                            # in one terminal
    PYTHONPATH=layers/nakadi/python:glue_jobs .venv/bin/python docs/examples/company_day --orders 1000

The events come from a seed, so all correct results are known. The program compares each figure with the correct one,
and ends at the first difference. Arguments after `--` go to the jobs, and say where the broker keeps its events.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Self

import httpx
from day import CUSTOMER_PATHS, FEATURES, FIGURES, PAYMENTS, SCHEMAS, Day, Event, Truth

import nakadi_spark
from nakadi_client import Connection, EventRefused, Limits, Producer, read
from nakadi_jobs import compaction, retention, statistics
from nakadi_jobs.places import table_name
from nakadi_jobs.session import open_spark
from nakadi_sql import FolderTables, HttpSource, ask
from nakadi_sql import Limits as QueryLimits

PARTS = 4
"""After each part of the day, all figures are compared; after the second, jobs begin to keep tables."""

PATIENCE = 600.0
FOUR = {"messages_per_minute": 1000, "message_size": 400, "read_parallelism": 4, "write_parallelism": 4}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:8080")
    parser.add_argument("--data", default="data", help="the broker's data folder, default data")
    parser.add_argument("--tables", help="the folder of the tables, default DATA/tables")
    parser.add_argument("--database", default="nakadi", help="the database of the tables")
    parser.add_argument("--event-log", help="as NAKADI_EVENT_LOG, if that is not in the data folder")
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("jobs", nargs="*", help="arguments of the jobs")
    options = parser.parse_args(arguments)
    begin = datetime.now(UTC)
    events, truth = Day(options.seed, options.orders, begin).events, Truth()
    with Company(options) as company:
        company.create_event_types()
        for part in range(PARTS):
            some = events[len(events) * part // PARTS : len(events) * (part + 1) // PARTS]
            company.publish_and_ask(some, truth)
            company.compare(truth, f"SQL, {part + 1} of {PARTS} parts published", company.ask)
            if part > 0:
                company.run(compaction.main)
                company.compare(truth, "SQL, with tables", company.ask)
        company.compare(truth, "Spark", company.open_spark_views())
        company.fill_tables(truth)
        company.compare_reports(truth)
        customer = truth.customer_with_most_orders()
        company.erase(customer)
        truth.erase(customer)
        company.compare(truth, "SQL, after an erasure", company.ask)
        company.compare(truth, "Spark, after an erasure", company.open_spark_views())
        company.check_streams(truth, customer)
    print(f"{len(events)} events, {company.compared} figures compared; all of them are true.")


Ask = Callable[[str], list[tuple[Any, ...]]]


class Company:
    """A broker, and the tables of its events."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.url, self._database = options.url, options.database
        self._tables = Path(options.tables or f"{options.data}/tables").absolute()
        self._job_arguments = ["--data", options.data, "--tables", str(self._tables), "--database", options.database]
        self._job_arguments += [
            "--event-types",
            ",".join(SCHEMAS),
            "--master",
            "local[2]",
            "--memory",
            "1g",
            *options.jobs,
        ]
        self._erasure_arguments = ["--event-log", options.event_log] if options.event_log else []
        self._open = ExitStack()
        self._spark = open_spark("company", f"file://{self._tables}", "hadoop", "local[2]", "1g")
        self.compared = 0

    def __enter__(self) -> Self:
        self._api = self._open.enter_context(httpx.Client(base_url=self.url, timeout=60))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def create_event_types(self) -> None:
        for name, schema in SCHEMAS.items():
            definition = {
                "name": name,
                "owning_application": "shop",
                "partition_strategy": "hash",
                "enrichment_strategies": ["metadata_enrichment"],
                "compatibility_mode": "forward",
                "default_statistic": FOUR,
                "schema": {"type": "json_schema", "schema": json.dumps({"type": "object", **schema})},
                **FEATURES[name],
            }
            self._api.post("/event-types", json=definition).raise_for_status()

    # Publishing, with queries at the same time

    def publish_and_ask(self, events: Sequence[Event], truth: Truth) -> None:
        """Publish events. Queries that run at the same time find each event at most once, and only published events."""
        before = len(truth.events_of(PAYMENTS))
        truth.add(events)
        after = len(truth.events_of(PAYMENTS))
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(self._publish, events)
            count = before
            while not publishing.done():
                [(rows, eids)] = self.ask("SELECT count(*), count(DISTINCT metadata.eid) FROM company_payment_received")
                assert count <= rows == eids <= after, (before, count, rows, eids, after)
                count = rows
            publishing.result()

    def _publish(self, events: Sequence[Event]) -> None:
        with ExitStack() as stack:
            producers = {
                name: stack.enter_context(Producer(self.url, name, key=_key, limits=Limits(batch_events=50)))
                for name in SCHEMAS
            }
            sent = [(event, producers[event.event_type].send(event.body)) for event in events]
            for producer in producers.values():
                producer.flush()
            for event, delivery in sent:
                try:
                    delivery.result(timeout=PATIENCE)
                except EventRefused:
                    assert event.is_wrong, event
                else:
                    assert not event.is_wrong, event

    # Queries

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows that a query over tables and log returns."""
        tables = FolderTables(str(self._tables), self._database)
        with (
            HttpSource(Connection(self.url), partial(print, file=sys.stderr)) as source,
            ask(query, source, tables, QueryLimits(seconds=PATIENCE)) as answer,
        ):
            return [*answer.rows()]

    def open_spark_views(self) -> Ask:
        """A function that runs a query in Spark, on the events that exist at that moment."""
        broker = nakadi_spark.Broker(self.url, tables=f"nakadi.{self._database}")
        for name in SCHEMAS:
            nakadi_spark.read(self._spark, broker, name).createOrReplaceTempView(table_name(name))

        def ask_spark(query: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in self._spark.sql(query.replace("unnest(", "explode(")).collect()]

        return ask_spark

    def compare(self, truth: Truth, who: str, ask_for: Ask) -> None:
        for what, (query, true) in FIGURES.items():
            found, wanted = ask_for(query), true(truth)
            assert found == wanted, f"{who}: {what}:\n{found}\nbut in truth\n{wanted}"
            self.compared += 1
        print(f"{who}: {len(FIGURES)} figures are true", flush=True)

    # Jobs

    def run(self, job: Callable[[Sequence[str]], int], *arguments: str) -> None:
        with redirect_stderr(StringIO()) as messages, redirect_stdout(StringIO()):
            code = job([*self._job_arguments, *arguments])
        assert code == 0, messages.getvalue()

    def fill_tables(self, truth: Truth) -> None:
        """Run jobs until the tables have all events: events that are not archived yet are not in the tables."""
        deadline = time.monotonic() + PATIENCE
        while any(self._event_type(name)["table"]["rows"] < len(truth.events_of(name)) for name in SCHEMAS):
            assert time.monotonic() < deadline, "the tables lack events"
            time.sleep(1)
            self.run(compaction.main)
        self.run(statistics.main)

    def _event_type(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._api.get(f"/event-types/{name}").raise_for_status().json()
        return found

    def compare_reports(self, truth: Truth) -> None:
        """Compare what the jobs reported about the events that they added."""
        for name in SCHEMAS:
            runs = self._api.get(f"/event-types/{name}/table-runs").raise_for_status().json()["items"]
            unmet = sum(each["unmet"] for run in runs for each in run["expectations"])
            found = [sum(run[what] for run in runs) for what in ("rows", "late_events", "duplicates", "misfits")]
            rows = len(truth.events_of(name))
            wanted = [rows, truth.count_late(name), truth.count_repeated(name), 0, truth.free_orders() if unmet else 0]
            assert [*found, unmet] == wanted, (name, found, unmet, wanted)
            [(counted,)] = self._spark.sql(
                f"SELECT sum(events) FROM nakadi.{self._database}.nakadi__statistics WHERE event_type = '{name}'"  # noqa: S608
            ).collect()
            assert counted == rows, (name, counted, rows)
            self.compared += 6
        print("the reports of the jobs are true", flush=True)

    def erase(self, customer: str) -> None:
        for name, path in CUSTOMER_PATHS.items():
            with tempfile.TemporaryDirectory() as folder:
                wanted = ("--event-type", name, "--path", path, "--value", customer, "--how", "remove")
                self.run(retention.main, "--do", "erase", *wanted, *self._erasure_arguments, "--report", folder)
                [report] = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
            assert report["verified_gone"], report["left_in"]
        print(f"nothing of {customer} is left in the archive and in tables", flush=True)

    def check_streams(self, truth: Truth, customer: str) -> None:
        """Check that streams from the beginning deliver the remaining events, and none of the erased customer. Kafka
        still delivers erased events until they expire.
        """
        deadline = time.monotonic() + PATIENCE
        for name, path in CUSTOMER_PATHS.items():
            while len(events := self._read(name)) > len(truth.events_of(name)) and time.monotonic() < deadline:
                time.sleep(1)
            assert len(events) == len(truth.events_of(name)), (name, len(events), len(truth.events_of(name)))
            assert customer not in {_value_at(path, event) for event in events}
            self.compared += 2
        print("streams deliver what is left", flush=True)

    def _read(self, name: str) -> list[Any]:
        return [event for batch in read(self.url, name, start="begin", follow=False) for event in batch.events]


def _key(event: Any) -> str:
    """The partition key: it keeps orders, their payments and their shipments each in order."""
    members = json.loads(event) if isinstance(event, bytes) else event
    return str(members.get("data", members)["order_number"])


def _value_at(path: str, event: Any) -> Any:
    for name in path.split("."):
        event = event[name]
    return event


if __name__ == "__main__":
    main(sys.argv[1:])
