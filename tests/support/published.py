"""Publishes events of random shapes under changing schemas, and compares them value by value with the tables of the
jobs (all events, and the current state of each key), as Spark, DuckDB and pyiceberg read them.

Between the batches, random incidents happen: a job is interrupted, a value is erased, the archive is compacted, events
expire, partitions are added, or the event type is deleted and created again.

python -m tests.support.published [SEEDS] [FIRST_SEED]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import UUID

import httpx
from pyspark.sql import DataFrame, Row

from nakadi.app.engines import open_log_index, open_registry
from nakadi.common.caching import Cache
from nakadi.event_types.repository import EventTypes
from nakadi.local import Broker
from nakadi.model.event_type import EventType
from nakadi.ports.clock import SystemClock
from nakadi_jobs import compaction, retention, statistics
from nakadi_jobs.event_type_tables import events_table
from nakadi_jobs.places import LATEST_SUFFIX
from nakadi_jobs.session import open_spark
from nakadi_jobs.tables import Change, Table
from tests.support.api import a_definition, create_event_type
from tests.support.compared_rows import assert_row_is_as_published
from tests.support.jobs import DataFolder, Jobs
from tests.support.patience import PATIENCE, until
from tests.support.shapes import Shape, Shapes
from tests.support.table_readers import assert_read_alike
from tests.support.tiers import ARCHIVE_MANUALLY, TieredLogParts

EVENT_KEYS = ("k1", "k2", "k3", "k,4", '"5')
WRITERS = ("w1", "w2", "w3", "w4")
"""The writers of events; an erasure removes the events of one writer."""

MOMENTS = (
    (Change, "append"),
    (Change, "append_files"),
    (Change, "publish"),
    (Table, "create"),
    (Table, "add"),
    (Table, "set"),
)
"""The steps of a job before or after which it may be killed."""

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class PublishedEvent(NamedTuple):
    """An event or, without a text, a tombstone."""

    text: str | None
    key: str | None = None
    deletes: bool = False
    writer: str = ""
    eid: str = ""


class JobKilled(BaseException):
    """Raised in a job to imitate a kill."""


class TableComparison:
    """A broker with one event type, the events published to it, and jobs that read them."""

    def __init__(self, seed: int, folder: Path, tables: Path) -> None:
        self._drawn = random.Random(seed)
        self._shapes = Shapes(self._drawn)
        self._folder, self._file = folder, f"sqlite:///{folder / 'nakadi.db'}"
        self._database, self._tables = f"published_{folder.name}_{seed}".replace("-", "_"), tables
        self._category = self._drawn.choice(("undefined", "business", "data"))
        self._mode = self._drawn.choice(("none", "none", "forward", "compatible"))
        self.happened: Counter[str] = Counter()
        self._define()

    def _define(self) -> None:
        """Begin with a new event type, which has no published events."""
        self._published: list[PublishedEvent] = []
        self._erased: set[int] = set()
        # Events that the archive may have lost by compaction before a table had them.
        self._forgotten: set[int] = set()
        self._state: dict[str, int] = {}
        self._folded = 0
        self._partitions = 1
        without = {"business": "metadata", "data": "key"}.get(self._category, "")
        self._draw = partial(self._shapes.event, without=without, restricted=self._mode == "compatible")
        self._shape: Shape | None = None

    def run(self, rounds: int) -> None:
        """Publish and cause two incidents in each round; at the end, run the jobs to their end, and compare."""
        places = {"registry": self._file, "event_log": self._file, "log_index": self._file}
        archive = str(self._folder / "archive")
        self._definition = self._new_definition()
        with (
            Broker(**places, archive=archive, archive_after_seconds=0) as broker,
            httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
        ):
            for _ in range(rounds):
                self._publish(api)
                self._wait_until_archived()
                for happens in self._drawn.sample(self._possible_actions(api), 2):
                    happens()
        self._compact()
        self._update_current_state()
        self.happened["events"] += len(self._published)
        rows = self._compare_table()
        if self._category != "undefined":
            self._compare_current_state()
        self._job(statistics.main)
        measured = self._table("nakadi__statistics").agg({"events": "sum"}).collect()
        assert [tuple(row) for row in measured] == [(rows,)]

    def _new_definition(self) -> dict[str, Any]:
        definition = a_definition(category=self._category, compatibility_mode=self._mode)
        if self._category != "undefined":
            definition["enrichment_strategies"] = ["metadata_enrichment"]
        if self._category == "data":
            definition |= {"partition_strategy": "hash", "partition_key_fields": ["key"]}
        if self._category == "business":
            definition["cleanup_policy"] = "compact"
        return definition

    # Incidents

    def _possible_actions(self, api: httpx.Client) -> Sequence[Callable[[], None]]:
        found = [self._compact, self._compact_cut_short, self._compact_cut_short, self._erase, self._expire]
        if self._category == "business":
            found += [self._compact_archive, self._compact_archive]
        if self._category == "data":
            found += [partial(self._add_partition, api)]
        if self._drawn.random() < 0.3:
            found += [partial(self._create_again, api)]
        return found

    def _compact(self) -> None:
        self._job(compaction.main, "--no-tidying")

    def _compact_cut_short(self) -> None:
        """Interrupt compaction at one of its steps, when it takes the step for the first time or later."""
        owner, name = self._drawn.choice(MOMENTS)
        step, is_done, left = getattr(owner, name), self._drawn.random() < 0.5, self._drawn.randrange(3)

        def cut_short(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                return step(*arguments)
            if is_done:
                step(*arguments)
            raise JobKilled

        with patch.object(owner, name, cut_short):
            try:
                self._job(compaction.main, *self._drawn.choice(((), ("--no-tidying",))))
            except JobKilled:
                self.happened["kills"] += 1

    def _erase(self) -> None:
        """Erase the events of a random writer. The table must have all events before, because the current state of each
        key depends on them.
        """
        if self._category != "undefined":
            self._compact()
        self._update_current_state()
        writer = self._drawn.choice(WRITERS)
        path = "data.who" if self._category == "data" else "who"
        self._job(
            retention.main,
            *("--do", "erase", "--event-type", self._definition["name"], "--path", path, "--value", writer),
            for_one=False,
        )
        self._erased |= {number for number, event in enumerate(self._published) if event.writer == writer}
        self._state = {key: number for key, number in self._state.items() if number not in self._erased}
        self.happened["erasures"] += 1

    def _expire(self) -> None:
        """Let retention expire what it may, without a grace time."""
        self._job(retention.main, "--grace-hours", "0", for_one=False)
        self.happened["expiries"] += 1

    def _compact_archive(self) -> None:
        """Compact the archive, which removes every event that is followed by a newer one with the same key."""
        newest = {event.key: number for number, event in enumerate(self._published)}
        with closing(TieredLogParts("sqlite", self._folder, SystemClock()).log(ARCHIVE_MANUALLY)) as log:
            now = SystemClock().now()
            log.compact(self._event_type().timeline.topic, 0, stored_before=now, tombstones_before=LONG_AGO)
        self._forgotten |= {*range(len(self._published))} - {*newest.values()}
        self.happened["archives compacted"] += 1

    def _add_partition(self, api: httpx.Client) -> None:
        self._partitions += 1
        answer = api.put(
            f"/event-types/{self._definition['name']}/partition-count", json={"partition_count": self._partitions}
        )
        assert answer.status_code == 204, answer.text
        self.happened["partitions added"] += 1

    def _create_again(self, api: httpx.Client) -> None:
        """Delete the event type, and create another one with its name: tables must not have the events of the deleted
        one.
        """
        answer = api.delete(f"/event-types/{self._definition['name']}")
        assert answer.status_code == 200, answer.text
        self._define()
        self._publish(api)
        self._wait_until_archived()
        self.happened["created again"] += 1

    # Publishing

    def _publish(self, api: httpx.Client) -> None:
        shape = self._register(api)
        events = [self._event(shape.value()) for _ in range(6)]
        self._send(api, "events", [event.text or "" for event in events])
        self._published += events
        if self._category == "business" and (keys := self._drawn.sample(EVENT_KEYS, self._drawn.randrange(3))):
            self._send(api, "deleted-events", [f"{{{self._metadata(key)[0]}}}" for key in keys])
            self._published += [PublishedEvent(None, key, deletes=True) for key in keys]

    def _register(self, api: httpx.Client) -> Shape:
        """Create the event type, or change its schema: to any other schema or, if that is not permitted, by adding a
        property.
        """
        last = self._shape
        shape = self._draw() if last is None or self._mode == "none" else self._shapes.with_another_property(last)
        known = {"who": {"type": "string"}} | ({"key": {"type": "string"}} if self._category == "data" else {})
        text = json.dumps({**shape.schema, "properties": {**shape.schema["properties"], **known}})
        definition = self._definition | {"schema": {"type": "json_schema", "schema": text}}
        if last is None:
            create_event_type(api, definition)
        else:
            answer = api.put(f"/event-types/{definition['name']}", json=definition)
            if self._mode != "none" and answer.status_code == 422:
                return last
            assert answer.status_code == 200, answer.text
            self.happened["schemas changed"] += 1
        self._shape = shape
        return shape

    def _send(self, api: httpx.Client, to: str, texts: Sequence[str]) -> None:
        answer = api.post(
            f"/event-types/{self._definition['name']}/{to}",
            content="[" + ",".join(texts) + "]",
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 200, (texts, answer.text)

    def _event(self, payload: str) -> PublishedEvent:
        key, writer = self._drawn.choice(EVENT_KEYS), self._drawn.choice(WRITERS)
        separator = "" if payload == "{}" else ","
        if self._category == "undefined":
            return PublishedEvent(f'{{"who":"{writer}"{separator}{payload[1:]}', writer=writer)
        if self._category == "business":
            metadata, eid = self._metadata(key)
            return PublishedEvent(f'{{{metadata},"who":"{writer}"{separator}{payload[1:]}', key, False, writer, eid)
        operation, (metadata, eid) = self._drawn.choice("CUSD"), self._metadata()
        payload = f'{{"key":{json.dumps(key)},"who":"{writer}"{separator}{payload[1:]}'
        text = f'{{{metadata},"data_type":"thing","data_op":"{operation}","data":{payload}}}'
        return PublishedEvent(text, key, operation == "D", writer, eid)

    def _metadata(self, key: str | None = None) -> tuple[str, str]:
        """The metadata of an event, and its eid."""
        eid = str(UUID(int=self._drawn.getrandbits(128)))
        metadata = {"eid": eid, "occurred_at": "2026-11-20T10:00:00Z"}
        if key is not None:
            metadata["partition_compaction_key"] = key
        return f'"metadata":{json.dumps(metadata)}', eid

    def _wait_until_archived(self) -> None:
        with closing(open_log_index(self._file)) as index:
            topic = self._event_type().timeline.topic
            places = [(topic, partition) for partition in range(self._partitions)]
            until(
                lambda: (
                    index.topic(topic)
                    and sum(head.state.next_offset for head in index.index_heads(places).values())
                    >= len(self._published)
                )
            )

    def _event_type(self) -> EventType:
        with closing(open_registry(self._file)) as registry:
            return EventTypes(registry, Cache(SystemClock(), 1)).get(self._definition["name"])

    def _job(self, main: Callable[[Sequence[str]], int], *arguments: str, for_one: bool = True) -> None:
        places = ["--data", str(self._folder), "--tables", str(self._tables), "--database", self._database]
        work = ["--master", "local[2]", "--memory", "1g"]
        selection = ["--event-types", self._definition["name"]] if for_one else []
        with redirect_stderr(StringIO()) as messages, redirect_stdout(StringIO()):
            code = main([*places, *work, *selection, *arguments])
        assert code == 0, messages.getvalue()

    # Comparing

    def _update_current_state(self) -> None:
        """Apply the events published since the last call to the current state of each key."""
        for number, event in enumerate(self._published[self._folded :], self._folded):
            if event.deletes:
                self._state.pop(event.key or "", None)
            elif event.key is not None:
                self._state[event.key] = number
        self._folded = len(self._published)

    def _compare_table(self) -> int:
        """Compare the table of all events with the published ones, and return its number of rows."""
        found = self._compare_rows(self._events)
        wanted = {*range(len(self._published))} - self._erased
        assert found <= wanted, f"erased, and there again: {found - wanted}"
        assert wanted - found <= self._forgotten, f"missing: {wanted - found}"
        return len(found)

    def _compare_current_state(self) -> None:
        latest = self._compare_rows(self._events + LATEST_SUFFIX)
        assert latest == {*self._state.values()}, (latest, self._state)

    def _compare_rows(self, name: str) -> Collection[int]:
        """Compare the rows of a table with the published events, and return the numbers of the events that the table
        contains.
        """
        table = self._table(name)
        numbers = {event.eid: number for number, event in enumerate(self._published)}
        rows = table.collect()
        found = [numbers[_eid_of(row)] if self._category == "data" else row["nakadi_offset"] for row in rows]
        assert len({*found}) == len(found)
        for row, number in zip(rows, found, strict=True):
            published = self._published[number]
            assert_row_is_as_published(row, published.text, has_metadata=self._category != "undefined")
            assert row["nakadi_key"] == published.key
        assert_read_alike(table, self._tables / self._database / name)
        return {*found}

    @property
    def _events(self) -> str:
        """The name of the table of all events."""
        return events_table(self._spark(), self._database, self._event_type()).name

    def _table(self, name: str) -> DataFrame:
        return self._spark().table(f"nakadi.{self._database}.{name}")

    def _spark(self) -> Any:
        return open_spark("look", f"file://{self._tables}", "hadoop", "local[2]", "1g")


def _eid_of(row: Row) -> str:
    eid = row["metadata"]["eid"] if row["metadata"] else json.loads(row["nakadi_event"])["metadata"]["eid"]
    return str(eid)


def compare_hostile(seed: int, folder: Path, tables: Path) -> int:
    """Compare a table of values that brokers refuse today but an archive may have: numbers of any size, texts that are
    not Unicode, and values outside their schema. Return the number of events.
    """
    drawn = random.Random(seed)
    with closing(DataFolder(folder)) as data:
        jobs = Jobs(data, tables)
        shapes = Shapes(drawn, hostile=True)
        versions = [shapes.event() for _ in range(3)]
        event_type = data.event_type("hostile", versions[0].schema)
        texts: list[str] = []
        for version in versions:
            event_type = data.new_schema("hostile", version.schema)
            new = [version.value() for _ in range(6)]
            data.archive_events(event_type, [text.encode() for text in new])
            texts += new
            if drawn.random() < 0.5:
                assert jobs.compact().code == 0
        ran = jobs.compact()
        assert ran.code == 0, ran.told
        rows = jobs.table("hostile").orderBy("nakadi_offset").collect()
        for row, text in zip(rows, texts, strict=True):
            assert_row_is_as_published(row, text, has_metadata=False)
    return len(texts)


def main(arguments: Sequence[str]) -> None:
    seeds = int(arguments[0]) if arguments else 20
    first = int(arguments[1]) if len(arguments) > 1 else random.randrange(2**32)
    happened: Counter[str] = Counter()
    with ExitStack() as kept:
        tables = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="nakadi-published-"))) / "tables"
        for seed in range(first, first + seeds):
            data = tables.parent / str(seed)
            data.mkdir()
            comparison = TableComparison(seed, data, tables)
            comparison.run(rounds=5)
            comparison.happened["hostile events"] += compare_hostile(seed, data / "hostile", tables)
            happened += comparison.happened
            print(f"seed {seed}: {format_counts(comparison.happened)}", flush=True)
    print(f"{seeds} seeds: each event is in its table as it was published; {format_counts(happened)}")


def format_counts(happened: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(happened.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
