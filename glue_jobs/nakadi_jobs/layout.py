"""How tables are partitioned and sorted: the default, or the choice in an event type's annotations.

Iceberg stores the layout with each file, so a change rewrites nothing: it applies to files that are written later.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from msgspec import Struct as Frozen
from msgspec.structs import replace

from nakadi.event_types.table_layout import (
    BUCKET_TRANSFORM,
    IDENTITY_TRANSFORM,
    TIME_TRANSFORMS,
    TRUNCATE_TRANSFORM,
    BadTableLayout,
    TablePartitionColumn,
    TableSortColumn,
    table_layout_from_annotations,
)
from nakadi.model.annotations import PARTITION_BY_ANNOTATION, SORT_BY_ANNOTATION
from nakadi.model.event_type import EventType
from nakadi_jobs.columns import TIMESTAMP, Kind, Scalar, Struct
from nakadi_jobs.places import ORDER

KEY_BUCKETS = 16
"""The partitions of a table of the newest events. A lookup of a key, and a merge, reads one of them."""


class TableLayout(Frozen, frozen=True):
    """A layout. `name` is stored with the table; the default has no name.

    `merges_on_read`: small files mark replaced rows, which stay in place until files are merged.
    """

    name: str
    partition_by: Sequence[TablePartitionColumn]
    sort_by: Sequence[TableSortColumn]
    merges_on_read: bool = False

    @property
    def keeps_values_apart(self) -> bool:
        """Whether rows with different values, not just times, are in different files."""
        return any(field.transform_name not in TIME_TRANSFORMS for field in self.partition_by)


DEFAULT_LAYOUT = TableLayout("", (TablePartitionColumn("nakadi_time", "day"),), tuple(map(TableSortColumn, ORDER)))

KEY_LAYOUT = TableLayout(
    f"by key, {KEY_BUCKETS} buckets",
    (TablePartitionColumn("nakadi_key", BUCKET_TRANSFORM, KEY_BUCKETS),),
    (TableSortColumn("nakadi_key"),),
    merges_on_read=True,
)
"""The layout of tables of the newest events."""


def choose_layout(event_type: EventType, columns: Struct) -> TableLayout:
    """Return the layout of a table of all events with these columns. Raises `BadTableLayout`."""
    asked = table_layout_from_annotations(event_type.annotations)
    if asked.partition_by is None and asked.sort_by is None:
        return DEFAULT_LAYOUT
    texts = (event_type.annotations.get(name) or "" for name in (PARTITION_BY_ANNOTATION, SORT_BY_ANNOTATION))
    return TableLayout(
        "; ".join(texts),
        DEFAULT_LAYOUT.partition_by
        if asked.partition_by is None
        else tuple(_partition_field(field, columns) for field in asked.partition_by),
        DEFAULT_LAYOUT.sort_by
        if asked.sort_by is None
        else tuple(_sort_field(field, columns) for field in asked.sort_by),
    )


def _partition_field(field: TablePartitionColumn, columns: Struct) -> TablePartitionColumn:
    name, kind = _find_column(field.column, columns)
    if not _may_partition(kind.name, field.transform_name):
        raise BadTableLayout(
            f"{name} is a {kind.name}, and no table is partitioned by {field.transform_name} of such a column"
        )
    return replace(field, column=name)


def _sort_field(field: TableSortColumn, columns: Struct) -> TableSortColumn:
    return replace(field, column=_find_column(field.column, columns)[0])


def _may_partition(kind: str, transform: str) -> bool:
    if transform in TIME_TRANSFORMS:
        return kind == TIMESTAMP.name
    if transform == TRUNCATE_TRANSFORM:
        return kind in {"string", "int", "bigint"} or kind.startswith("decimal")
    return kind != "double" and (kind != "boolean" or transform != BUCKET_TRANSFORM)


def _find_column(path: str, columns: Struct) -> tuple[str, Scalar]:
    """The name and type of a column in the table that is not inside a list."""
    found: list[str] = []
    kind: Kind = columns
    for step in path.split("."):
        fields = {field.name.lower(): field for field in kind.fields} if isinstance(kind, Struct) else {}
        if step.lower() not in fields:
            raise BadTableLayout(f"there is no column {path} outside of lists and maps")
        found.append(fields[step.lower()].name)
        kind = fields[step.lower()].kind
    if not isinstance(kind, Scalar):
        raise BadTableLayout(f"{path} is not a single value")
    return ".".join(found), kind


def partition_by(table: Any, expressions: Any, wanted: Sequence[TablePartitionColumn]) -> None:
    """Partition Iceberg's table by these fields, and by no others, from now on."""
    there = {
        (table.schema().findColumnName(field.sourceId()), field.transform().toString()): field.name()
        for field in table.spec().fields()
    }
    asked = {(field.column, _transform(field)): field for field in wanted}
    if there.keys() == asked.keys():
        return
    update = table.updateSpec()
    for known in there.keys() - asked.keys():
        update = update.removeField(there[known])
    for new, field in asked.items():
        if new not in there:
            update = update.addField(_partition_name(field), _term(expressions, field))
    update.commit()


def order_by(wanted: Sequence[TableSortColumn]) -> str:
    """The sort fields as SQL."""
    columns = (".".join(f"`{step}`" for step in field.column.split(".")) for field in wanted)
    return ", ".join(
        f"{column} {'DESC' if field.descending else 'ASC'}" for column, field in zip(columns, wanted, strict=True)
    )


def layout_properties(layout: TableLayout, columns: Struct, bounded: Container[str]) -> Mapping[str, str]:
    """Return the properties of a table with this layout. `bounded` columns always have bounds in manifests.

    Manifests outlive the files that they name, and therefore erasures. So they get bounds of moments, but not of other
    sort columns, and no file paths, which would contain partition values.
    """
    bounds = {
        f"write.metadata.metrics.column.{name}": "full" if _find_column(name, columns)[1] == TIMESTAMP else "none"
        for name in (field.column for field in layout.sort_by)
        if name not in bounded
    }
    return {
        **bounds,
        "write.distribution-mode": "hash" if layout.keeps_values_apart else "none",
        "write.object-storage.enabled": str(layout.keeps_values_apart).lower(),
        "write.object-storage.partitioned-paths": "false",
        "write.merge.mode": "merge-on-read" if layout.merges_on_read else "copy-on-write",
    }


def _transform(field: TablePartitionColumn) -> str:
    """The transform as Iceberg writes it."""
    return (
        f"{field.transform_name}[{field.bucket_count_or_width}]"
        if field.bucket_count_or_width
        else field.transform_name
    )


def _partition_name(field: TablePartitionColumn) -> str:
    """A name without dots, which engines would read as separators of levels."""
    size = f"_{field.bucket_count_or_width}" if field.bucket_count_or_width else ""
    return f"{field.column.replace('.', '_')}_{field.transform_name}{size}"


def _term(expressions: Any, field: TablePartitionColumn) -> Any:
    if field.transform_name == IDENTITY_TRANSFORM:
        return expressions.ref(field.column)
    made = getattr(expressions, field.transform_name)
    return made(field.column, field.bucket_count_or_width) if field.bucket_count_or_width else made(field.column)
