"""Events of random shapes, published over changing schemas, and compared value by value with the tables of the jobs,
as Spark, DuckDB and pyiceberg read them: all events, and what there is now under each key.

python -m tests.support.published [WORLDS] [FIRST_SEED]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import httpx
from pyspark.sql import DataFrame, Row

from nakadi.app.engines import open_log_index, open_registry
from nakadi.common.caching import Cache
from nakadi.event_types.repository import EventTypes
from nakadi.local import Broker
from nakadi.ports.clock import SystemClock
from nakadi_jobs import compaction, statistics
from nakadi_jobs.event_type_tables import LATEST, table_name
from nakadi_jobs.session import open_spark
from nakadi_jobs.tables import Change
from tests.support.api import a_definition, created
from tests.support.patience import PATIENCE, until
from tests.support.table_readers import assert_read_alike

NAMES = ("a", "b", "c")
KEYS = ("k1", "k2", "k3", "k,4", "")
EID = "00000000-0000-4000-8000-000000000001"

NUMBERS = (
    "0",
    "-1.5",
    "0.30000000000000004",
    "1e5",
    "9007199254740993",
    "0.1000000000000000000001",
    "12.340",
    "1e-300",
)
INTEGERS = ("0", "-7", "9223372036854775807", "9007199254740993")
TEXTS = (
    '""',
    '"x"',
    '"1.5"',
    '"true"',
    '"{}"',
    r'"\u0041\ud83d\ude00"',
    r'"\\ud83d\""',
    r'"\u0001 7"',
    '"[1"',
    '"\\":"',
)
MOMENTS = ('"2026-11-20T10:00:00Z"', '"2026-11-20T10:00:00.123456+02:00"', '"2026-11-20t10:00:00.1234567z"')


class Shapes:
    """Draws schemas, and values that they let in, as texts."""

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn

    def schema(self) -> dict[str, Any]:
        """What the payload of an event may be; now and then closed."""
        return self._object(0) | self._drawn.choice(({}, {"additionalProperties": False}))

    def _any(self, depth: int) -> dict[str, Any]:
        scalars: list[dict[str, Any]] = [
            {"type": "string"},
            {"type": "integer"},
            {"type": "number"},
            {"type": "number", "multipleOf": 0.01},
            {"type": "number", "format": "decimal"},
            {"type": "boolean"},
            {"type": "string", "format": "date-time"},
            {"type": ["string", "null"]},
            {"type": ["integer", "string"]},
            {"type": "object"},
            {"type": "object", "additionalProperties": {"type": "string"}},
            {},
        ]
        kind = self._drawn.random()
        if depth < 2 and kind < 0.25:
            return self._object(depth + 1)
        if depth < 2 and kind < 0.5:
            return {"type": "array", "items": self._any(depth + 1)}
        return self._drawn.choice(scalars)

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._drawn.sample(NAMES, self._drawn.randint(1, len(NAMES)))
        return {"type": "object", "properties": {name: self._any(depth) for name in names}}

    def value(self, schema: Mapping[str, Any]) -> str:  # noqa: PLR0911  # one for each form of schema
        match schema:
            case {"properties": properties}:
                members = [
                    f'"{name}":{self.value(each)}' for name, each in properties.items() if self._drawn.random() < 0.8
                ]
                if schema.get("additionalProperties", True) and self._drawn.random() < 0.2:
                    members.append(f'"z":{self._drawn.choice(TEXTS + NUMBERS)}')
                return "{" + ",".join(members) + "}"
            case {"items": items}:
                return "[" + ",".join(self.value(items) for _ in range(self._drawn.randint(0, 3))) + "]"
            case {"multipleOf": _}:
                return self._drawn.choice(("1", "12.30", "-0.05"))
            case {"format": "date-time"}:
                return self._drawn.choice(MOMENTS)
            case {"type": "object", "additionalProperties": _}:
                return f'{{"k":{self._drawn.choice(TEXTS)}}}'
            case {"type": "object"}:
                return f'{{"k":[{self._drawn.choice(NUMBERS)},{self._drawn.choice(TEXTS)},null]}}'
        kinds = {
            "string": TEXTS,
            "integer": INTEGERS,
            "number": NUMBERS,
            "boolean": ("true", "false"),
            "null": ("null",),
        }
        named = schema.get("type", ["string", "number", "null", "boolean"])
        return self._drawn.choice(kinds[self._drawn.choice([named] if isinstance(named, str) else named)])


class Published(NamedTuple):
    """An event, or a tombstone, which has no text."""

    text: str | None
    key: str | None = None
    deletes: bool = False


class Killed(BaseException):
    """Raised in a job in place of a kill."""


class World:
    """A broker with one event type, what was published to it, and jobs that read it."""

    def __init__(self, seed: int, folder: Path, tables: Path) -> None:
        self._drawn = random.Random(seed)
        self._shapes = Shapes(self._drawn)
        # By another generator, so that a seed has the same shapes with keys and without.
        self._drawn_keys = random.Random(f"keys of {seed}")
        self._folder, self._file = folder, f"sqlite:///{folder / 'nakadi.db'}"
        self._database, self._tables = f"published_{folder.name}_{seed}".replace("-", "_"), tables
        self._published: list[Published] = []
        self._category = self._drawn.choice(("undefined", "business", "data"))
        self._definition: dict[str, Any] = a_definition(category=self._category, compatibility_mode="none")
        if self._category != "undefined":
            self._definition["enrichment_strategies"] = ["metadata_enrichment"]
        if self._category == "data":
            self._definition |= {"partition_strategy": "hash", "partition_key_fields": ["key"]}
        if self._category == "business":
            self._definition["cleanup_policy"] = "compact"

    def run(self, rounds: int) -> None:
        """Publish and run jobs in turn, the last time to their end, and compare."""
        places = {"registry": self._file, "event_log": self._file, "log_index": self._file}
        archive = str(self._folder / "archive")
        with (
            Broker(**places, archive=archive, archive_after_seconds=0) as broker,
            httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
        ):
            for number in range(rounds):
                self._publish(api, self._shapes.schema(), first=not number)
                self._wait_until_archived()
                self._compact(kill=self._drawn.random() < 0.5)
        self._compact(kill=False)
        rows = self._compared(self._name, range(len(self._published)))
        if self._category == "undefined":
            assert not (self._folder_of(self._name + LATEST)).exists()
        else:
            latest = self._compared(self._name + LATEST, sorted(self._current_state().values()))
            assert {row["nakadi_key"]: row["nakadi_offset"] for row in latest} == self._current_state()
        assert [row["nakadi_key"] for row in rows] == [each.key for each in self._published]
        self._job(statistics.main)
        measured = self._table("nakadi__statistics").agg({"events": "sum"}).collect()
        assert [tuple(row) for row in measured] == [(len(self._published),)]

    def _compared(self, name: str, offsets: Iterable[int]) -> Sequence[Row]:
        """Compare a table with what was published at some offsets, and return its rows."""
        table = self._table(name).orderBy("nakadi_offset")
        rows = table.collect()
        assert [row["nakadi_offset"] for row in rows] == list(offsets)
        for row in rows:
            compare(row, self._published[row["nakadi_offset"]].text)
        assert_read_alike(table, self._folder_of(name))
        return rows

    def _current_state(self) -> Mapping[str, int]:
        """The offset of the newest event of each key, unless that took the key away."""
        newest: dict[str, int] = {}
        for offset, event in enumerate(self._published):
            assert event.key is not None
            newest[event.key] = offset
        return {key: offset for key, offset in newest.items() if not self._published[offset].deletes}

    def _publish(self, api: httpx.Client, schema: Mapping[str, Any], *, first: bool) -> None:
        has_key = (
            {"properties": {**schema["properties"], "key": {"type": "string"}}} if self._category == "data" else {}
        )
        text = json.dumps({**schema, **has_key})
        definition = self._definition | {"schema": {"type": "json_schema", "schema": text}}
        if first:
            created(api, definition)
        else:
            answer = api.put(f"/event-types/{definition['name']}", json=definition)
            assert answer.status_code == 200, answer.text
        events = [self._event(self._shapes.value(schema)) for _ in range(6)]
        self._send(api, "events", [event.text or "" for event in events])
        self._published += events
        if self._category == "business" and (keys := self._drawn_keys.sample(KEYS, self._drawn_keys.randrange(3))):
            self._send(api, "deleted-events", [f"{{{_metadata(key)}}}" for key in keys])
            self._published += [Published(None, key, deletes=True) for key in keys]

    def _send(self, api: httpx.Client, to: str, texts: Sequence[str]) -> None:
        answer = api.post(
            f"/event-types/{self._definition['name']}/{to}",
            content="[" + ",".join(texts) + "]",
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 200, (texts, answer.text)

    def _event(self, payload: str) -> Published:
        if self._category == "undefined":
            return Published(payload)
        key, separator = self._drawn_keys.choice(KEYS), "" if payload == "{}" else ","
        if self._category == "business":
            return Published(f"{{{_metadata(key)}{separator}{payload[1:]}", key)
        operation = self._drawn_keys.choice("CUSD")
        payload = f'{{"key":{json.dumps(key)}{separator}{payload[1:]}'
        text = f'{{{_metadata()},"data_type":"thing","data_op":"{operation}","data":{payload}}}'
        return Published(text, key, deletes=operation == "D")

    def _wait_until_archived(self) -> None:
        with closing(open_registry(self._file)) as registry, closing(open_log_index(self._file)) as index:
            topic = EventTypes(registry, Cache(SystemClock(), 1)).get(self._definition["name"]).timeline.topic
            until(
                lambda: (
                    index.topic(topic) and index.heads([(topic, 0)])[topic, 0].state.next_offset >= len(self._published)
                )
            )

    def _compact(self, *, kill: bool) -> None:
        if not kill:
            self._job(compaction.main, "--no-tidying")
            return
        publish, done = Change.publish, self._drawn.random() < 0.5

        def cut_short(change: Change) -> None:
            if done:
                publish(change)
            raise Killed

        with patch.object(Change, "publish", cut_short):
            try:
                self._job(compaction.main, "--no-tidying")
            except Killed:
                return

    def _job(self, main: Callable[[Sequence[str]], int], *arguments: str) -> None:
        places = ["--data", str(self._folder), "--tables", str(self._tables), "--database", self._database]
        work = ["--master", "local[2]", "--memory", "1g", "--event-types", self._definition["name"]]
        with redirect_stderr(StringIO()) as told, redirect_stdout(StringIO()):
            code = main([*places, *work, *arguments])
        assert code == 0, told.getvalue()

    @property
    def _name(self) -> str:
        """Of the table of all events."""
        return table_name(self._definition["name"])

    def _folder_of(self, name: str) -> Path:
        return self._tables / self._database / name

    def _table(self, name: str) -> DataFrame:
        spark = open_spark("look", f"file://{self._tables}", "hadoop", "local[2]", "1g")
        return spark.table(f"nakadi.{self._database}.{name}")


def _metadata(key: str | None = None) -> str:
    metadata = {"eid": EID, "occurred_at": "2026-11-20T10:00:00Z"}
    if key is not None:
        metadata["partition_compaction_key"] = key
    return f'"metadata":{json.dumps(metadata)}'


# Comparing ------------------------------------------------------------------------------------------------------------


def compare(row: Row, text: str | None) -> None:
    """Raise `AssertionError` unless a row has what was published, in columns or in the text, and nothing else."""
    columns = {name: value for name, value in row.asDict().items() if not name.startswith("nakadi_")}
    assert row["nakadi_tombstone"] is (text is None), (text, row)
    if text is None:
        assert (row["nakadi_event"], {*columns.values()}) == (None, {None}), row
        return
    published = _read(text)
    assert _agrees(Row(**columns), published), (text, row)
    if row["nakadi_event"] is None:
        assert _names(Row(**columns)) >= _names_published(published), (text, row)
    else:
        kept = _read(row["nakadi_event"])
        assert {**kept, "metadata": 0} == {**published, "metadata": 0}, (text, row)


def _read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


STAMPED = {"published_by", "received_at", "version", "event_type", "partition", "flow_id", "parent_eids", "span_ctx"}


def _agrees(found: Any, published: Any) -> bool:  # noqa: PLR0911  # one for each type of value
    """Whether each value that is there is what was published, in another notation perhaps."""
    match found:
        case None:
            return True
        case Row() if not found.asDict():
            return isinstance(published, dict)
        case Row():
            return isinstance(published, dict) and all(
                value is None or (name in STAMPED and name not in published) or _agrees_at(name, value, published)
                for name, value in found.asDict().items()
            )
        case list():
            return isinstance(published, list) and len(found) == len(published) and all(map(_agrees, found, published))
        case dict():
            return found == published
        case bool():
            return found is published
        case float():
            return not isinstance(published, str) and Decimal(repr(found)) == published
        case int() | Decimal():
            return not isinstance(published, str) and found == published
        case datetime():
            return isinstance(published, str) and found.astimezone(UTC) == datetime.fromisoformat(published.upper())
    return bool(found == published) or (not isinstance(published, str) and _read(found) == published)


def _agrees_at(name: str, value: Any, published: Mapping[str, Any]) -> bool:
    member = name.partition("__")[0]
    return member in published and _agrees(value, published[member])


def _names(found: Any) -> int:
    """How many members the columns hold; further columns of a property are in tables whose events are in texts too."""
    match found:
        case Row():
            members = {
                name: value for name, value in found.asDict().items() if value is not None and name not in STAMPED
            }
            return sum(1 + _names(value) for value in members.values())
        case list():
            return sum(map(_names, found))
        case dict():
            return len(found)
        case str() if found[:1] in ("{", "["):
            return _names_published(_read(found)) if _is_json(found) else 0
    return 0


def _names_published(published: Any) -> int:
    match published:
        case dict():
            return sum(1 + _names_published(value) for value in published.values())
        case list():
            return sum(map(_names_published, published))
    return 0


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def main(arguments: Sequence[str]) -> None:
    worlds = int(arguments[0]) if arguments else 20
    first = int(arguments[1]) if len(arguments) > 1 else random.randrange(2**32)
    with tempfile.TemporaryDirectory(prefix="nakadi-published-") as folder:
        tables = Path(folder) / "tables"
        for seed in range(first, first + worlds):
            print(f"world {seed}", flush=True)
            data = Path(folder) / str(seed)
            data.mkdir()
            World(seed, data, tables).run(rounds=6)
    print(f"{worlds} worlds: each event is in its table as it was published")


if __name__ == "__main__":
    main(sys.argv[1:])
