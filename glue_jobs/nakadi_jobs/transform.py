"""Turns the archive's lines into rows of tables. This module only transforms DataFrames, without reading or writing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from nakadi_jobs.archive_ranges import ArchiveRange
from nakadi_jobs.columns import STRING, Array, Field, Json, Kind, Scalar, Struct, Texts, contains_several_types
from nakadi_jobs.exact_values import MISFIT, is_misfit, may_differ, read_exactly, read_quickly
from nakadi_jobs.places import ORDER
from nakadi_jobs.session import make_frame

EVENT_MARKER = ',"event":'
"""The beginning of the event in a line. Inside a text, its quotes would have a backslash."""

HEADER = (
    Field("topic", STRING),
    Field("partition", Scalar("int")),
    Field("offset", Scalar("bigint")),
    Field("time", STRING),
    Field("event_type", STRING),
    Field("key", STRING),
    Field("owner", Array(STRING)),
    Field("directed_to", STRING),
)

_BEGINNING = '{"topic":"'

MAX_NAME_LENGTH = 260
"""A length that no topic's name reaches."""

# The type with which Spark parses the beginning of a line,
# {"topic":"…","partition":0,"offset":17,"time":"2026-11-20T10:00:00…
_HEAD = f"substring_index(value, '{EVENT_MARKER}', 1)"
_TOPIC = "substring_index(substring_index(head, '\"', 4), '\"', -1)"
_PARTITION = "substring_index(substring_index(head, ',', 2), ':', -1)"
_OFFSET = "substring_index(substring_index(head, ',', 3), ':', -1)"
_TIME = "substring_index(substring_index(head, '\"time\":\"', -1), '\"', 1)"

SIZE = f"greatest(octet_length(value) - octet_length(head) - {len(EVENT_MARKER) + 1}, 0)"
"""The bytes of the event, without the rest of its line."""

WANTED_COLUMNS = "topic string, partition int, from long, to long, type string, stamped boolean"


def make_wanted_frame(
    spark: SparkSession, parts: Iterable[ArchiveRange], types: Mapping[str, tuple[str, bool]]
) -> DataFrame:
    """Return the wanted offsets, with the number of their event type, and whether the broker stamps its events."""
    found = join_ranges((each.topic, each.partition, each.first, each.end) for each in parts)
    return make_frame(spark, ((*each, *types[each[0]]) for each in found), WANTED_COLUMNS)


def select_topics(lines: DataFrame, topics: Iterable[str]) -> DataFrame:
    """Select the lines of some topics by their first characters."""
    named = sorted(set(topics))
    if len(named) == 1:
        return lines.where(F.col("value").startswith(f'{_BEGINNING}{named[0]}"'))
    topic = F.substring_index(F.substring("value", len(_BEGINNING) + 1, MAX_NAME_LENGTH), '"', 1)
    return lines.where(topic.isin(named))


def locate_lines(lines: DataFrame) -> DataFrame:
    """Add the place of each line, taken from its beginning; `head` is the text before the event.

    Lines are parsed only after the wanted ones are selected: otherwise Spark would parse them a second time, to check
    that the columns for the join are not null.
    """
    return lines.select("*", F.expr(_HEAD).alias("head")).select(
        "value",
        "head",
        F.expr(_TOPIC).alias("topic"),
        F.expr(_PARTITION).cast("int").alias("partition"),
        F.expr(_OFFSET).cast("long").alias("offset"),
    )


def select_wanted(lines: DataFrame, chosen: DataFrame) -> DataFrame:
    """Select the lines with wanted places, and add the type and stamping of their topics."""
    same = [
        F.col("lines.topic") == F.col("chosen.topic"),
        F.col("lines.partition") == F.col("chosen.partition"),
        F.col("lines.offset") >= F.col("chosen.from"),
        F.col("lines.offset") < F.col("chosen.to"),
    ]
    return lines.alias("lines").join(F.broadcast(chosen.alias("chosen")), same).select("lines.*", "type", "stamped")


def parse_lines(lines: DataFrame, columns: Struct, parts: Sequence[ArchiveRange]) -> DataFrame:
    """Parse lines: `line` is the whole line as a structure, beside its original text and its place.

    `doubtful` says that Spark may have changed a value, so the line was read exactly. `misfit` says that a value had
    another type than its column, or that the line was unreadable. Each step copies the lines, so there are only two
    steps.
    """
    line = _line(columns)
    if columns.fields and contains_several_types(line):
        read = lines.withColumn("line", F.expr(_prevent_reparsing(read_exactly("value", line))))
        return read.withColumns(
            {"doubtful": F.lit(True), "misfit": F.expr(f"line.`{MISFIT}` is not null"), **_place_columns(parts)}
        )
    quickly = lines.withColumn("line", F.expr(_prevent_reparsing(read_quickly("value", line))))
    doubtful = F.expr(may_differ("value", "line", line)) if columns.fields else F.lit(False)
    judged = {
        "doubtful": doubtful,
        "misfit": F.expr(_prevent_reparsing(is_misfit("value", "line", line))),
        **_place_columns(parts),
    }
    if columns.fields:
        judged["line"] = F.when(doubtful, F.expr(read_exactly("value", line))).otherwise(F.col("line"))
    return quickly.withColumns(judged)


def _prevent_reparsing(expression: str) -> str:
    """An equivalent expression that keeps Spark from parsing each line again for a condition on its parsed values."""
    return f"if(monotonically_increasing_id() >= 0, {expression}, null)"


def select_placed(lines: DataFrame, parts: Sequence[ArchiveRange]) -> DataFrame:
    """The parsed lines with wanted places.

    They may include copies of an event in replaced objects; the number of lines reveals that.
    """
    return lines.where(" or ".join(_offset_range_conditions(parts)) or "false")


def _place_columns(parts: Sequence[ArchiveRange]) -> Mapping[str, Column]:
    """Partition, offset and timeline of a line, even of an unparsable one."""
    return {
        "partition": F.expr(f"coalesce(line.partition, cast({_evaluate_on_head(_PARTITION)} as int))"),
        "offset": F.expr(f"coalesce(line.offset, cast({_evaluate_on_head(_OFFSET)} as bigint))"),
        "timeline": F.expr(f"case {' '.join(_timeline_cases(parts))} end"),
    }


def _timeline_cases(parts: Sequence[ArchiveRange]) -> Iterator[str]:
    for topic, timeline in sorted({(part.topic, part.timeline) for part in parts}):
        yield f'when startswith(value, \'{{"topic":"{topic}"\') then {timeline}'
    if not parts:
        yield "when false then 0"


def _offset_range_conditions(parts: Sequence[ArchiveRange]) -> Iterator[str]:
    """One condition for each range of offsets without a hole."""
    for timeline, partition, first, end in join_ranges(
        (each.timeline, each.partition, each.first, each.end) for each in parts
    ):
        yield f"(timeline = {timeline} and partition = {partition} and offset >= {first} and offset < {end})"


def join_ranges(ranges: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Join adjacent ranges. The last two members of a range are its ends."""
    last: tuple[Any, ...] = ()
    for each in sorted(set(ranges)):
        *place, first, end = each
        if last and list(last[:-2]) == place and first <= last[-1]:
            last = (*last[:-1], max(end, last[-1]))
            continue
        if last:
            yield last
        last = each
    if last:
        yield last


def range_condition(ranges: Iterable[tuple[int, int, int, int]]) -> str:
    """The condition for rows in ranges of timeline, partition, first offset and end. It also selects files."""
    timeline, partition, offset = ORDER
    conditions = (
        f"({timeline} = {order} and {partition} = {number} and {offset} >= {first} and {offset} < {end})"
        for order, number, first, end in ranges
    )
    return " or ".join(conditions) or "false"


def table_rows(events: DataFrame, columns: Struct) -> DataFrame:
    """The rows of the table: places, payload, and the text where it is needed.

    If the columns hold everything that an event can contain, no event is checked for further members. Times are in UTC,
    the zone of the jobs' sessions. For the suffix Z, Spark would compile a regular expression each time.
    """
    line = _line(columns)
    misfit = F.col("misfit")
    lacking = F.expr(f"{count_column_members('line', line)} < {member_count_expression('value')}")
    incomplete = misfit | (F.col("doubtful") & lacking if columns.closed else lacking)
    has_event = F.contains(F.col("value"), F.lit(EVENT_MARKER))
    event = F.expr(f"substring(value, instr(value, '{EVENT_MARKER}') + {len(EVENT_MARKER)}, length(value))")
    text = F.when(has_event, event.substr(F.lit(1), F.length(event) - 1)).otherwise(F.col("value"))
    tombstone = F.col("line.event").isNull() & ~has_event & ~misfit
    owner = F.struct(F.col("line.owner")[0].alias("data_type"), F.col("line.owner")[1].alias("value"))
    places = {
        "nakadi_timeline": F.col("timeline"),
        "nakadi_partition": F.col("partition"),
        "nakadi_offset": F.col("offset"),
        "nakadi_time": F.expr(
            f"cast(trim(trailing 'Z' from coalesce(line.time, {_evaluate_on_head(_TIME)})) as timestamp)"
        ),
        "nakadi_key": F.col("line.key"),
        "nakadi_owner": F.when(F.col("line.owner").isNotNull(), owner),
        "nakadi_directed_to": F.col("line.directed_to"),
        "nakadi_tombstone": tombstone,
        "nakadi_size": F.expr(_evaluate_on_head(SIZE)),
        "nakadi_publisher": F.expr(_publisher_expression(columns)),
        "nakadi_event": F.when(~tombstone & incomplete, text),
        MISFIT: misfit,
    }
    payload = (F.col(f"line.event.`{field.name}`") for field in columns.fields)
    return events.select(*(value.alias(name) for name, value in places.items()), *payload)


def _publisher_expression(columns: Struct) -> str:
    """The publisher, from the metadata, or from the text of an unreadable event."""
    metadata = next((field.kind for field in columns.fields if field.name == "metadata"), None)
    known = {field.name: field.kind for field in metadata.fields} if isinstance(metadata, Struct) else {}
    # If the broker adds no metadata, a publisher may use a property of this name for something else.
    if known.get("published_by") != STRING:
        return "cast(null as string)"
    in_text = "get_json_object(value, '$.event.metadata.published_by')"
    return f"coalesce(line.event.metadata.published_by, if(misfit, {in_text}, null))"


def _evaluate_on_head(expression: str) -> str:
    return re.sub(r"\bhead\b", _HEAD, expression)


def frame_columns(rows: DataFrame) -> Struct:
    """The columns of rows. For columns with texts, it is unknown what the texts contain."""
    found = _frame_kind(rows.schema)
    assert isinstance(found, Struct)
    return found


def _frame_kind(found: DataType) -> Kind:
    match found:
        case StructType():
            return Struct(tuple(Field(field.name, _frame_kind(field.dataType)) for field in found.fields))
        case ArrayType():
            return Array(_frame_kind(found.elementType))
        case MapType():
            return Texts()
    return Scalar(found.simpleString())


def sort_events(events: DataFrame) -> DataFrame:
    """Sort events as tables do: by day, and within a day by place."""
    return events.sortWithinPartitions(F.to_date("nakadi_time"), *ORDER)


def newest_per_key(events: DataFrame) -> DataFrame:
    """The newest event of each key, which may be a tombstone. Events without a key are left out."""
    newness = F.struct("nakadi_timeline", "nakadi_time", "nakadi_partition", "nakadi_offset")
    whole = F.struct(*(F.col(f"`{name}`") for name in events.columns))
    newest = events.where("nakadi_key is not null").groupBy("nakadi_key").agg(F.max_by(whole, newness).alias("newest"))
    return newest.select("newest.*")


def _line(columns: Struct) -> Struct:
    """The type of a line whose event has these columns; without columns, the event is a text."""
    return Struct(
        (*HEADER, Field("event", columns) if columns.fields else Field("event", STRING, has_several_types=True))
    )


def member_count_expression(text: str) -> str:
    """An expression for a lower bound of the number of members."""
    return f"((octet_length({text}) - octet_length(replace({text}, '\":', ''))) div 2)"


def count_column_members(value: str, kind: Struct) -> str:
    """Return an expression for the number of members that a value of this type holds, nested ones included."""
    return _count_nested(value, kind, 0)


def _count_members(value: str, field: Field, depth: int) -> str:
    if field.has_several_types:
        return "0"
    if _is_plain(field.kind):
        return f"cast({value} is not null as int)"
    return f"if({value} is null, 0, 1 + {_count_nested(value, field.kind, depth)})"


def _complete_members(values: str, kind: Struct) -> tuple[int, list[str]] | None:
    """The number of members of a complete structure, and a condition that is true or unknown if a list element lacks
    members. None for a structure with members that are neither plain nor such structures. Spark does not compile
    lambdas; and if an element is null, it answers "unknown" when asked whether a list contains a value.
    """
    members, lacking = 0, list[str]()
    for field in kind.fields:
        inner = f"{values}.`{field.name}`"
        members += 1
        if field.has_several_types:
            return None
        match field.kind:
            case Struct() as structure:
                inner_members = _complete_members(inner, structure)
                if inner_members is None or not inner_members[0]:
                    return None
                members += inner_members[0]
                lacking += inner_members[1]
            case Scalar("boolean"):
                lacking.append(f"array_contains(cast({inner} as array<int>), 2)")
            case Scalar(name):
                lacking.append(f"array_contains({inner}, cast('{UNLIKELY_VALUES.get(name, '-99991')}' as {name}))")
            case Array() as plain if _is_plain(plain):
                lacking.append(f"flatten({inner}) is null")
            case _:
                return None
    return members, lacking


UNLIKELY_VALUES = {"string": r"\u0000", "timestamp": "0001-01-01"}
"""Values that hardly any event has. If an event has one, its members are counted one by one."""


def _is_plain(kind: Kind) -> bool:
    return isinstance(kind, Scalar) or (isinstance(kind, Array) and _is_plain(kind.of))


def _count_nested(value: str, kind: Kind, depth: int) -> str:
    match kind:
        case Struct(fields):
            return _balanced_sum([_count_members(f"{value}.`{field.name}`", field, depth) for field in fields])
        case Texts():
            return f"coalesce(size({value}), 0)"
        case Json():
            return _count_json_members(value)
        case Array(element) if not _is_plain(element):
            each = f"each{depth}"
            inside = _count_nested(each, element, depth + 1)
            added = f"(sum{depth}, {each}) -> sum{depth} + cast({inside} as int)"
            one_by_one = f"coalesce(aggregate({value}, 0, {added}), 0)"
            whole = _complete_members(value, element) if isinstance(element, Struct) else None
            if not whole or not whole[0]:
                return one_by_one
            lacking = " or ".join(whole[1])
            return f"if(coalesce({lacking}, true), {one_by_one}, {whole[0]} * size({value}))"
    return "0"


def _balanced_sum(terms: Sequence[str]) -> str:
    """A sum by halves: added one by one, a thousand terms would nest too deeply for Spark's stack."""
    if len(terms) < 2:
        return f"({terms[0] if terms else 0})"
    half = len(terms) // 2
    return f"({_balanced_sum(terms[:half])} + {_balanced_sum(terms[half:])})"


def _count_json_members(value: str) -> str:
    """An expression for an upper bound of the number of members. A text that is neither an object nor an array was
    originally another value.
    """
    escaped = f"(octet_length({value}) - octet_length(replace({value}, '\\\\\":', ''))) div 3"
    certain = f"({member_count_expression(value)} - {escaped})"
    return f"coalesce(if(substring({value}, 1, 1) in ('{{', '['), {certain}, -1), 0)"
