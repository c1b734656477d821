"""Plain lines become data files without Spark, with the same content; other lines are left to Spark."""

import json
import random
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal

import pytest

from nakadi.model.annotations import SORT_BY_ANNOTATION
from nakadi.model.authorization import Attribute
from nakadi.model.event_type import Category
from nakadi_jobs import compaction, plain_files
from nakadi_jobs.columns import BIGINT, DOUBLE, STRING, TIMESTAMP, Array, Field, Json, Scalar, Struct, Texts
from nakadi_jobs.plain_lines import NotPlain, Reader
from tests.support.jobs import STORED_AT, order
from tests.support.table_forms import make_form

NUMBER, TEXT = {"type": "number"}, {"type": "string"}
SCHEMA = {
    "properties": {
        "n": NUMBER,
        "i": {"type": "integer"},
        "t": TEXT,
        "b": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "d": {"type": "number", "multipleOf": 0.01},
        "e": {"type": "number", "format": "decimal"},
        "o": {"properties": {"n": NUMBER, "t": TEXT}},
        "l": {"type": "array", "items": {"properties": {"n": NUMBER, "l": {"type": "array", "items": TEXT}}}},
        "m": {"type": "object", "additionalProperties": TEXT},
        "j": {"type": "object"},
    }
}
VALUES = {
    "n": ["1", "-0.5", "2.50", "0.1", "123456789012345", "1234567890123456", "0.1000000000000000001", "1e3", '"1"'],
    "i": ["1", "-5", "9223372036854775807", "9223372036854775808", "1.0", "1e2"],
    "t": ['"x"', '"a\\"b"', '"gr\\u00fcn"', '"gr\xfcn"', '"\\ud83d\\ude00"', '"\\ud83d"', '"a\\nb"', "5", '":null"'],
    "b": ["true", "false", '"true"'],
    "at": [
        '"2026-11-20T10:00:00Z"',
        '"2026-11-20T10:00:00.123456+01:30"',
        '"2026-11-20T10:00:00.1234567Z"',
        '"2026-02-30T10:00:00Z"',
        '"2026-11-20"',
        '"2026-11-20t10:00:00z"',
        '"0001-01-01T00:00:00Z"',
    ],
    "d": ["1", "1.25", "1.255", "99999999999.99", "0.1", "-3.10"],
    "e": ["0.0005", "12345.67", "0.1", "1"],
    "o": ['{"n":1.5,"t":"x"}', "{}", '{"n":1,"more":2}', "[]"],
    "l": ['[{"n":1},{"n":2,"l":["a","b"]}]', "[]", '[{"n":1,"z":3},{}]', '[{"l":[]},null]'],
    "m": ['{"a":"b"}', "{}"],
    "j": ['{"a":1.50}'],
    "z": ["1", '"x"'],
}


def random_events(seed, plain):
    """Events with random members. The first value is plain, and others nearly always are."""
    drawn = random.Random(seed)
    for _ in range(60):
        names = drawn.sample(list(VALUES), drawn.randrange(1, 6))
        members = []
        for name in names:
            value = VALUES[name][0] if drawn.random() < plain else drawn.choice([*VALUES[name], "null"])
            members.append(f'"{name}":{value}')
        yield ("{" + ",".join(members) + "}").encode()


@pytest.mark.parametrize(("seed", "plain"), [pytest.param(1, 0.0, marks=pytest.mark.long), (2, 0.9)])
def test_tables_are_as_spark_would_make_them(jobs, data, monkeypatch, seed, plain):
    """For any events, each column has the value that Spark would write. A row may also have the text of an event that
    Spark would leave out because the columns hold all of it.
    """
    monkeypatch.setattr(plain_files, "MAX_DOUBTFUL_SHARE", 1)
    monkeypatch.setattr("nakadi_jobs.plain_lines.FEW_LINES", 2)
    one, other = (data.event_type(name, schema=SCHEMA, partitions=2) for name in ("by.files", "by.spark"))
    for event_type in (one, other):
        for partition in (0, 1):
            found = [*random_events(seed + partition, plain), None]
            keys = [f"k{number}" for number in range(len(found))]
            data.archive_events(event_type, found, partition=partition, keys=keys, apart=timedelta(hours=1))

    assert jobs.compact("--event-types", "by.files").code == 0
    with only_spark(monkeypatch):
        assert jobs.compact("--event-types", "by.spark").code == 0

    columns = [name for name in jobs.table("by_spark").columns if name != "nakadi_event"]
    assert jobs.table("by_files").columns == jobs.table("by_spark").columns
    whole = f"to_json(struct({', '.join(columns)}), map('ignoreNullFields', 'false'))"
    assert jobs.rows("by_files", whole) == jobs.rows("by_spark", whole)
    for ours, theirs in zip(jobs.rows("by_files", "nakadi_event"), jobs.rows("by_spark", "nakadi_event"), strict=True):
        assert theirs in (ours, (None,))
    texts = [text for (text,) in jobs.rows("by_files", "nakadi_event") if text]
    assert all(json.loads(text) is not None for text in texts)


@contextmanager
def only_spark(monkeypatch):
    def refuse(*_):
        raise NotPlain("a test")

    with monkeypatch.context() as patched:
        patched.setattr(compaction, "open_plain_batch", refuse)
        yield


def files_of(jobs, name):
    """Day, number of rows, and path of each file."""
    found = jobs.spark().table(f"nakadi.{jobs.database}.{name}.files")
    return sorted(
        map(tuple, found.selectExpr("string(partition.nakadi_time_day)", "record_count", "file_path").collect())
    )


def stored_in(jobs, path, *columns):
    return [tuple(row) for row in jobs.spark().read.parquet(path).select(*columns).collect()]


def test_files_are_of_a_day_and_sorted(jobs, data):
    """Members of several partitions and days are written to a file for each day, in the order of the table."""
    orders = data.event_type("order.placed", partitions=2)
    for partition in (1, 0, 1):
        data.archive_events(
            orders, [order(number) for number in range(4)], partition=partition, at=STORED_AT, apart=timedelta(hours=5)
        )

    assert jobs.spark_jobs(lambda: jobs.compact("--master", "local[1]")) == 0

    found = files_of(jobs, "order_placed")
    assert [(day, count) for day, count, _ in found] == [("2026-11-20", 9), ("2026-11-21", 3)]
    for _, _, path in found:
        stored = stored_in(jobs, path, "nakadi_partition", "nakadi_offset")
        assert stored == sorted(stored)


def test_what_has_no_column_is_in_the_text_without_a_job_of_spark(jobs, data):
    orders = data.event_type("order.placed")
    data.archive_events(orders, [order(1), order(2, more=1), order(3, total=None), order(4)])

    assert jobs.spark_jobs(jobs.compact) == 0

    texts = [text and json.loads(text) for (text,) in jobs.rows("order_placed", "nakadi_event")]
    assert texts == [None, order(2, more=1), order(3, total=None), None]


@pytest.mark.long
def test_where_most_is_doubtful_all_that_follows_is_left_to_spark(jobs, data, tables, monkeypatch):
    monkeypatch.setattr(plain_files, "CHUNK_BYTES", 300)  # two lines
    orders = data.event_type("order.placed")
    for number in range(3):
        data.archive_events(orders, [order(number, total=1e30), order(number)])
    # Copies that other tests may have left.
    before = set((tables / "_gathered").rglob("*.gz"))

    assert jobs.compact().code == 0

    assert [count for _, count, _ in files_of(jobs, "order_placed")] == [1, 5]
    assert len(jobs.rows("order_placed")) == 6
    assert set((tables / "_gathered").rglob("*.gz")) <= before


def test_a_table_with_a_layout_of_its_own_is_left_to_spark(jobs, data):
    """The files of a table with its own layout are sorted differently, even if they are also partitioned by day."""
    orders = data.annotate(data.event_type("order.placed"), {SORT_BY_ANNOTATION: "order_number desc"})
    data.archive_events(orders, [order(number) for number in range(3)])

    assert jobs.spark_jobs(jobs.compact) == 1

    [(_, _, path)] = files_of(jobs, "order_placed")
    assert stored_in(jobs, path, "order_number") == [("o-2",), ("o-1",), ("o-0",)]


@pytest.mark.long
def test_tasks_of_spark_make_files_where_they_run_elsewhere(jobs, data, monkeypatch):
    monkeypatch.setattr(plain_files, "runs_in_driver", lambda *_: False)
    monkeypatch.setattr(plain_files, "SHARE_BYTES", 1)
    orders = data.event_type("order.placed", partitions=3)
    for partition in range(3):
        data.archive_events(
            orders, [order(number, total=[1.5, 1e30][number % 2]) for number in range(4)], partition=partition
        )

    assert jobs.compact().code == 0

    rows = jobs.rows("order_placed", "nakadi_partition", "nakadi_offset", "total")
    assert rows == [(each // 4, each % 4, [1.5, 1e30][each % 2]) for each in range(12)]


def test_owners_and_publishers(jobs, data):
    """Owners and publishers have their own columns, filled as Spark would fill them."""
    orders = data.event_type("order.placed", category=Category.BUSINESS)
    metadata = {"eid": "e", "occurred_at": "2026-11-20T10:00:00Z", "published_by": "shop"}
    data.archive_events(orders, [order(1, metadata=metadata), order(2), None])

    assert jobs.spark_jobs(jobs.compact) == 0

    rows = jobs.rows("order_placed", "nakadi_publisher", "nakadi_owner", "nakadi_tombstone", "nakadi_size > 0")
    assert rows == [("shop", None, False, True), (None, None, False, True), (None, None, True, False)]


def a_reader(columns, table=None):
    return Reader(make_form(columns, table))


def line(offset, event, **more):
    header = {"topic": "t", "partition": 0, "offset": offset, "time": "2026-11-20T10:00:00.000000Z", **more}
    return json.dumps(header, separators=(",", ":"))[:-1].encode() + b',"event":' + event + b"}\n"


def test_lines_of_other_topics_have_no_row():
    reader = a_reader(Struct((Field("n", DOUBLE),)))
    found = reader.read(line(0, b'{"n":1}') + line(1, b"{}", topic="u"), "t", 3)
    assert found.rows.select(["nakadi_timeline", "nakadi_offset", "n"]).to_pylist() == [
        {"nakadi_timeline": 3, "nakadi_offset": 0, "n": 1.0}
    ]
    assert found.doubtful == []


def test_one_bad_line_leaves_the_others(monkeypatch):
    """The job finds lines that Arrow rejects by bisection: repeated names, text that is not JSON or not Unicode."""
    monkeypatch.setattr("nakadi_jobs.plain_lines.FEW_LINES", 2)
    reader = a_reader(Struct((Field("n", DOUBLE),)))
    bad = [line(1, b'{"n":1,"n":2}'), b"nothing\n", line(7, b'{"n":[]}'), line(9, b'{"t":"\xff"}')]
    lines = [bad.pop(0) if number in (1, 4, 7, 9) else line(number, b'{"n":1}') for number in range(12)]

    found = reader.read(b"".join(lines), "t", 1)

    assert found.rows["nakadi_offset"].to_pylist() == [0, 2, 3, 5, 6, 8, 10, 11]
    assert found.doubtful == [lines[number] for number in (1, 4, 7, 9)]


@pytest.mark.parametrize(
    ("scale", "plain", "doubtful"),
    [
        (2, ["1", "1.25", "96.46", "-0.10", "9999999999.99", "99999999999999", "null"], ["1.255", "0.001", "1e2"]),
        (2, [], ["99999999999999999999999999999999999999", '"1.5"', ' "1"']),
        (18, ["0.0001", "-0.0005", "0", "0.1", "12345.67", "123456789012.34"], ["0.1234567890123456789"]),
    ],
)
def test_decimals_are_as_they_were_written(monkeypatch, scale, plain, doubtful):
    monkeypatch.setattr("nakadi_jobs.plain_lines.FEW_LINES", 2)
    reader = a_reader(Struct((Field("d", Scalar(f"decimal(38,{scale})")),)))
    text = b"".join(line(at, f'{{"d":{number}}}'.encode()) for at, number in enumerate([*plain, *doubtful]))
    found = reader.read(text, "t", 1)
    assert found.rows["d"].to_pylist() == [None if number == "null" else Decimal(number) for number in plain]
    assert len(found.doubtful) == len(doubtful)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\uD83D\uDE00 \ud83d\ude00", "\U0001f600 \U0001f600"),
        (r"\u00fc\n", "\u00fc\n"),
        (r"\ud83d", None),
        (r"\ude00\ud83d", None),
        (r"\ud83d\ud83d\ude00", None),
        (r"\\ud83d\ude00", None),
        (r"\\ud83d\\ude00", None),
        (r"\u0001", None),
    ],
)
def test_pairs_of_surrogates_are_plain(monkeypatch, text, found):
    """A line with half of a surrogate pair, or with text that might be a half, is not plain; complete pairs are."""
    monkeypatch.setattr("nakadi_jobs.plain_lines.FEW_LINES", 2)
    lines = [line(0, b'{"t":"%b"}' % text.encode()), line(1, b'{"t":"x"}')]
    read = a_reader(Struct((Field("t", STRING),))).read(b"".join(lines), "t", 1)
    assert read.rows["t"].to_pylist() == [*([found] if found else []), "x"]
    assert read.doubtful == ([] if found else lines[:1])


@pytest.mark.parametrize(
    ("number", "is_plain"),
    [
        ("123456789012345", True),
        ("1234567.89012345", True),
        ("-0.12345678901234", True),
        ("1234567890123456", False),
        ("1234567.890123456", False),
        ("1.5e3", False),
    ],
)
def test_numbers_of_15_digits_are_plain(number, is_plain):
    """Each such number is a different double; longer numbers may not be."""
    read = a_reader(Struct((Field("n", DOUBLE),))).read(line(0, b'{"n":%b}' % number.encode()), "t", 1)
    assert read.rows["n"].to_pylist() == ([float(number)] if is_plain else [])
    assert len(read.doubtful) == (not is_plain)


OPENED = Struct(
    (
        Field("o", Json()),
        Field("a", Array(Json())),
        Field("t", Texts()),
        Field("l", Array(Struct((Field("n", BIGINT), Field("o", Json()))))),
    )
)


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (r'{"o":{"x":[1.10, 1e5]}}', {"o": '{"x":[1.10, 1e5]}'}),
        (r'{"o":{"\ud83d\ude00":"ä"},"a":[[-0],{}]}', {"o": r'{"\ud83d\ude00":"ä"}', "a": ["[-0]", "{}"]}),
        ('{"t":{"a":"b"}}', {"t": [("a", "b")]}),
        ('{"l":[{"n":1},{"o":{"y":2}},null],"o":[]}', {"l": [(1, None), (None, '{"y":2}'), None], "o": "[]"}),
        ('{"o":{"a" :1},"l" : []}', {"o": '{"a" :1}', "l": []}),
    ],
)
def test_open_objects_are_as_they_were_written(event, found):
    """The texts of open objects come from the line, whatever is beside them, and are complete."""
    other = line(1, b'{"a":[{"z":1}]}')
    read = a_reader(OPENED).read(line(0, event.encode()) + other, "t", 1)
    assert (read.doubtful, read.rows["nakadi_event"].to_pylist()) == ([], [None, None])
    row, another = read.rows.select(["o", "a", "t", "l"]).to_pylist()
    row["l"] = row["l"] and [each and (each["n"], each["o"]) for each in row["l"]]
    assert row == dict.fromkeys(("o", "a", "t", "l")) | found
    assert another["a"] == ['{"z":1}']


@pytest.mark.parametrize(
    "event",
    [
        '{"x":1}',
        '{"x" :1}',
        '{"o":{"a" :1},"x" :1}',
        '{"o":null}',
        '{"l":[{"z":1}]}',
        '{"o":{"a":1},"o":{"b":1}}',
        '{"t":{"a":"b","a":"c"}}',
    ],
)
def test_what_no_column_has_is_counted(event):
    """The row includes the event's text if a member is in no column because it is unknown, null or repeated."""
    read = a_reader(OPENED).read(line(0, event.encode()), "t", 1)
    assert (read.doubtful, read.rows["nakadi_event"].to_pylist()) == ([], [event])


def test_texts_in_lists_of_decimals_are_no_numbers():
    kind = Array(Array(Scalar("decimal(38,2)")))
    lines = [line(0, b'{"d":[[1,2],[3]]}'), line(1, b'{"d":[[1,2], ["3"]]}')]
    read = a_reader(Struct((Field("d", kind),))).read(b"".join(lines), "t", 1)
    assert (len(read.rows), read.doubtful) == (1, lines[1:])


@pytest.mark.parametrize("event", ['{"o":1}', '{"a":["x"]}', '{"a":[null]}', '{"a":{}}', '{"t":{"a":1}}', '{"t":[]}'])
def test_other_values_than_open_objects_are_doubtful(event):
    read = a_reader(OPENED).read(line(0, event.encode()), "t", 1)
    assert (len(read.rows), len(read.doubtful)) == (0, 1)


def test_a_line_ends_with_a_newline_only():
    reader = a_reader(Struct((Field("n", DOUBLE),)))
    lines = [line(0, b'{\r"n":1}'), line(1, b'{"n":\r[]}')]
    found = reader.read(b"".join(lines), "t", 1)
    assert sum(map(len, (found.rows, found.doubtful))) == 2
    assert set(found.doubtful) <= set(lines)


def test_owners_are_of_a_type():
    reader = a_reader(Struct((Field("n", DOUBLE),)))
    found = reader.read(line(0, b"{}", owner=["user", "me"]) + line(1, b"{}"), "t", 1)
    owner = Attribute("user", "me")
    assert found.rows["nakadi_owner"].to_pylist() == [{"data_type": owner.data_type, "value": owner.value}, None]
    assert reader.read(line(0, b"{}", owner=["me"]), "t", 1).doubtful


@pytest.mark.parametrize(
    ("columns", "table"),
    [
        (Struct(()), None),
        (Struct((Field("a", STRING, has_several_types=True),)), None),
        (Struct((Field("a", STRING),)), Struct((Field("a", BIGINT),))),
        (Struct((Field("a", TIMESTAMP),)), Struct((Field("a", STRING),))),
        (Struct((Field("a", STRING),)), Struct((Field("a", STRING), Field("b", Scalar("date"))))),
    ],
)
def test_tables_that_only_spark_fills(columns, table):
    with pytest.raises(NotPlain):
        a_reader(columns, table)
