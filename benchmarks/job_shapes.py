"""What does a compaction cost, depending on the shape of the events, compared with the least that Spark needs for the
same files?

    python benchmarks/job_shapes.py [--megabytes 100] [--rounds 2] [--only escapes]

The floor is Spark reading the same JSON with a given schema and writing Parquet. Each row shows the share of events
that become files without Spark, and the CPU seconds of compaction and floor in the best of some alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from datetime import timedelta
from functools import partial
from io import StringIO
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.jobs import BEGUN, SCHEMA, cpu_seconds, texts_of
from nakadi.model.event_type import Category
from nakadi_jobs import compaction
from nakadi_jobs.columns import Field, ddl_of
from nakadi_jobs.columns import Struct as Columns
from nakadi_jobs.event_type_tables import columns_of_all_versions
from nakadi_jobs.session import CATALOG, open_spark
from nakadi_jobs.transform import HEADER
from tests.support.jobs import DataFolder

DIFFERENT = 2_000
"""The number of different events of a shape; further events repeat them."""

MEMBER_BYTES = 10_000_000
"""The bytes of text in a member."""

BY_SPARK = re.compile(r"/\d{5}-[^/]*$")
"""The path of a file that a task of Spark wrote."""

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
Members = Mapping[str, Any]


class Shape(Struct, frozen=True):
    """The additional properties of a schema beside those of an order, and the members that they describe."""

    properties: Members
    make_members: Callable[[random.Random], Members]


def random_words(drawn: random.Random, count: int) -> str:
    return " ".join(f"{drawn.getrandbits(32):x}" for _ in range(count))


def random_tree(drawn: random.Random, levels: int) -> Members:
    children = {"children": [random_tree(drawn, levels - 1) for _ in range(2)]} if levels else {}
    return {"name": random_words(drawn, 2), **children}


def random_15_digits(drawn: random.Random) -> float:
    """A number with 15 digits."""
    return drawn.randrange(10**14, 10**15) / 10**9


NODE: dict[str, Any] = {"type": "object", "properties": {"name": TEXT}}
NODE["properties"]["children"] = {"type": "array", "items": {"$ref": "#/definitions/node"}}

SHAPES: Mapping[str, Shape] = {
    "plain": Shape({}, lambda _: {}),
    "patterns": Shape(
        {"code": {"type": "string", "pattern": "^c-[0-9]+$"}}, lambda drawn: {"code": f"c-{drawn.getrandbits(20)}"}
    ),
    "unions of objects": Shape(
        {
            "payment": {
                "oneOf": [
                    {"type": "object", "required": ["card"], "properties": {"card": TEXT}},
                    {"type": "object", "required": ["iban"], "properties": {"iban": TEXT}},
                ]
            }
        },
        lambda drawn: {"payment": {drawn.choice(["card", "iban"]): random_words(drawn, 2)}},
    ),
    "unions of types": Shape(
        {"value": {"type": ["string", "integer"]}}, lambda drawn: {"value": drawn.choice(["x", drawn.getrandbits(9)])}
    ),
    "recursion": Shape({"tree": {"$ref": "#/definitions/node"}}, lambda drawn: {"tree": random_tree(drawn, 2)}),
    "40 unknown members": Shape({}, lambda drawn: {f"u{number}": random_words(drawn, 1) for number in range(40)}),
    "escapes": Shape({"note": TEXT}, lambda drawn: {"note": f'"{random_words(drawn, 3)}"\n\\gr\u00fcn \U0001f600'}),
    "200 numbers of 15 digits": Shape(
        {"measured": {"type": "array", "items": NUMBER}},
        lambda drawn: {"measured": [random_15_digits(drawn) for _ in range(200)]},
    ),
    "500 columns": Shape(
        {f"c{number}": (TEXT, NUMBER, {"type": "integer"})[number % 3] for number in range(500)},
        lambda drawn: {f"c{number}": ("x", 1.5, 7)[number % 3] for number in drawn.sample(range(500), 250)},
    ),
    "10 KB": Shape({"note": TEXT}, lambda drawn: {"note": random_words(drawn, 1_100)}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100, help="text of each shape, default 100")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", choices=tuple(SHAPES))
    parser.add_argument("--memory", default="3g")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.0f}", flush=True)
    for name in options.only or SHAPES:
        with tempfile.TemporaryDirectory(prefix="nakadi-shapes-") as folder:
            measure_shape(name, Path(folder), options)
    print(f"load {os.getloadavg()[0]:.0f}")


def measure_shape(name: str, folder: Path, options: argparse.Namespace) -> None:
    shape, drawn = SHAPES[name], random.Random(1)
    schema = {"properties": {**SCHEMA["properties"], **shape.properties}, "definitions": {"node": NODE}}
    texts = [
        b"".join((text[:-1], b",", json.dumps(more, ensure_ascii=drawn.random() < 0.5).encode()[1:])) if more else text
        for text, more in ((text, shape.make_members(drawn)) for text in texts_of(0, DIFFERENT))
    ]
    size = sum(map(len, texts)) / len(texts)
    events, at_once = round(options.megabytes * 1e6 / size), round(MEMBER_BYTES / size)
    best = {"floor": float("inf"), "compaction": float("inf")}
    for number in range(options.rounds):
        with closing(DataFolder(folder / str(number))) as data:
            event_type = data.event_type(f"shape.n{number}", schema, category=Category.BUSINESS)
            endless = cycle(texts)
            for first in range(0, events, at_once):
                some = list(islice(endless, min(at_once, events - first)))
                at = BEGUN + timedelta(seconds=first / 200)
                data.archive_events(event_type, some, at=at, apart=timedelta(milliseconds=5))
            spark = open_spark("benchmark", f"file://{data.folder / 'tables'}", "hadoop", "local[*]", options.memory)
            columns = columns_of_all_versions(data.event_types, event_type)
            for what, task in (
                ("floor", partial(write_with_spark, spark, columns, data.folder)),
                ("compaction", partial(compact, data.folder)),
            ):
                begun = cpu_seconds()
                task()
                best[what] = min(best[what], cpu_seconds() - begun)
            files = spark.table(f"{CATALOG}.nakadi.shape_n{number}.files").select("file_path", "record_count").collect()
    plain = sum(row["record_count"] for row in files if not BY_SPARK.search(row["file_path"]))
    assert sum(row["record_count"] for row in files) == events
    ratio = best["compaction"] / best["floor"]
    print(
        f"| {name} | {size / 1000:.1f} KB, {events} | {plain / events:.0%} | {best['compaction']:.1f} | "
        f"{best['floor']:.1f} | {ratio:.2f} |",
        flush=True,
    )


def write_with_spark(spark: Any, columns: Columns, folder: Path) -> None:
    schema = spark.createDataFrame([], ddl_of(Columns((*HEADER, Field("event", columns))))).schema
    reader = spark.read.option("recursiveFileLookup", "true").option("lineSep", "\n").schema(schema)
    writer = reader.json(str(folder / "archive")).write.mode("overwrite").option("compression", "zstd")
    writer.parquet(str(folder / "floor"))


def compact(folder: Path) -> None:
    with redirect_stderr(StringIO()) as told, redirect_stdout(StringIO()):
        code = compaction.main(["--data", str(folder), "--no-tidying"])
    assert code == 0, told.getvalue()


if __name__ == "__main__":
    main()
