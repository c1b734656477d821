"""Event types and settings as JSON, and the links between pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from msgspec import UNSET, to_builtins
from msgspec.structs import asdict

from nakadi.event_types.forecast import ChangeForecast, ForecastChange, SchemaForecast
from nakadi.event_types.measured_statistics import MeasuredStatistics
from nakadi.event_types.table_objective import TableObjectiveStatus
from nakadi.event_types.table_runs import TableRun
from nakadi.event_types.table_states import TableState, positions_after_table
from nakadi.http.reader_views import affected_readers_view
from nakadi.model.annotations import EVENT_TYPE_ANNOTATIONS, annotation_warnings
from nakadi.model.authorization import Attribute, Authorization, BlockedKind, Feature
from nakadi.model.event_type import EventType, Schema, Storage, Timeline

if TYPE_CHECKING:
    pass


Links = dict[str, dict[str, str]]


def page_links(path: str, *, offset: int, limit: int, size: int, has_more: bool) -> Links:
    """The links from a page: `prev` unless it is the first, and `next` if more items follow; an empty page has no
    links.
    """
    links: Links = {}
    if offset > 0 and size:
        links["prev"] = _page_link(path, {"offset": max(0, offset - limit), "limit": limit})
    if has_more:
        links["next"] = _page_link(path, {"offset": offset + limit, "limit": limit})
    return links


def _page_link(path: str, parameters: Mapping[str, int]) -> dict[str, str]:
    return {"href": f"{path}?{urlencode(parameters)}"}


View = dict[str, Any]


def timestamp(moment: datetime) -> str:
    """A time as RFC 3339 in UTC, always with milliseconds."""
    return _timestamp_with_offset(moment).replace("+00:00", "Z")


def _timestamp_with_offset(moment: datetime) -> str:
    """A time in the form of the times of timelines, which ends in `+00:00`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def forecast_view(forecast: ChangeForecast) -> View:
    """`version` is present if the change would be accepted."""
    view: View = {
        "accepted": not forecast.refusals,
        "refusals": forecast.refusals,
        "compatibility_mode": forecast.current.compatibility_mode,
        "current_version": str(forecast.current.schema.version),
    }
    if forecast.version is not None:
        view["version"] = str(forecast.version)
    if forecast.readers:
        view["readers"] = affected_readers_view(forecast.readers)
    return view | schema_forecast_view(forecast.schema)


def schema_forecast_view(forecast: SchemaForecast) -> View:
    """`proposal` is present if the schema would be refused and another one would be accepted."""
    view: View = {
        "level": forecast.level.name.lower(),
        "changes": [_forecast_change_view(each) for each in forecast.changes],
    }
    return view if forecast.proposal is None else view | {"proposal": forecast.proposal}


def _forecast_change_view(change: ForecastChange) -> View:
    view: View = {
        "rule": change.rule,
        "path": change.path,
        "level": change.level.name.lower(),
        "permitted": change.permitted,
        "explanation": change.explanation,
    }
    return view | {name: value for name, value in (("old", change.old), ("new", change.new)) if value is not UNSET}


def event_type_view(event_type: EventType) -> View:
    view: View = {
        "name": event_type.name,
        "owning_application": event_type.owning_application,
        "category": event_type.category,
        "enrichment_strategies": event_type.enrichment_strategies,
        "partition_strategy": event_type.partition_strategy,
        "partition_key_fields": event_type.partition_key_fields,
        "cleanup_policy": event_type.cleanup_policy,
        "ordering_key_fields": event_type.ordering_key_fields,
        "ordering_instance_ids": event_type.ordering_instance_ids,
        "schema": schema_view(event_type.schema),
        "default_statistic": asdict(event_type.default_statistic) if event_type.default_statistic else None,
        "options": {"retention_time": event_type.retention_time},
        "authorization": event_type_authorization_view(event_type.authorization),
        "annotations": event_type.annotations,
        "labels": event_type.labels,
        "compatibility_mode": event_type.compatibility_mode,
    }
    if warnings := annotation_warnings(event_type.annotations, EVENT_TYPE_ANNOTATIONS):
        view["warnings"] = warnings
    # The following three members are omitted if they are not set, because some clients would take a null for a change.
    if event_type.audience is not None:
        view["audience"] = event_type.audience
    if event_type.event_owner_selector is not None:
        view["event_owner_selector"] = asdict(event_type.event_owner_selector)
    if event_type.deduplication is not None:
        view["deduplication"] = asdict(event_type.deduplication)
    return view | {
        "updated_at": timestamp(event_type.updated_at),
        "created_at": timestamp(event_type.created_at),
    }


def measured_statistics_view(measured: MeasuredStatistics) -> View:
    return {
        **asdict(measured.statistic),
        "recommended_partitions": measured.recommended_partitions,
        "measured_from": timestamp(measured.measured_since),
        "measured_until": timestamp(measured.measured_until),
    }


def table_state_view(table: TableState, event_type: EventType) -> View:
    return {
        "name": table.table_name,
        "cursors": [
            {"partition": partition, "offset": str(position)}
            for partition, position in positions_after_table(table, event_type)
        ],
        "rows": table.row_count,
        "misfits": table.misfit_count,
        "missing_events": table.unreadable_count,
        "latency_seconds": table.latency_seconds,
        "updated_at": timestamp(table.updated_at),
    }


def table_objective_view(status: TableObjectiveStatus) -> View:
    view: View = {
        "percent": status.objective.percent,
        "within_seconds": status.objective.within_seconds,
        "windows": [to_builtins(each) for each in status.windows],
        "pressure": status.pressure,
    }
    if status.slowest is not None:
        view["slowest_partition"] = {
            "partition": status.slowest.partition,
            "lag_seconds": int(status.slowest.lag_seconds),
        }
    return view


def table_run_view(run: TableRun) -> View:
    return {
        "job": run.job,
        "started_at": timestamp(run.started_at),
        "ended_at": timestamp(run.ended_at),
        "rows": run.row_count,
        "late_events": run.late_count,
        "duplicates": run.duplicate_count,
        "missing_events": run.missing_count,
        "misfits": run.misfit_count,
        "misfit_reasons": [
            {"rule": each.rule, "path": each.path, "events": each.event_count} for each in run.misfit_reasons
        ],
        "expectations": [
            {"annotation": each.annotation, "condition": each.condition, "unmet": each.unmet_count}
            for each in run.expectations
        ],
        "lag_seconds": run.lag_seconds,
        "cost": {"seconds": run.seconds, "bytes_read": run.bytes_read, "bytes_written": run.bytes_written},
    }


def schema_view(schema: Schema) -> View:
    return {
        "type": schema.type,
        "schema": schema.text,
        "version": str(schema.version),
        "created_at": timestamp(schema.created_at),
    }


def event_type_authorization_view(authorization: Authorization | None) -> View | None:
    return None if authorization is None else admins_view(authorization)


def attributes_view(attributes: Iterable[Attribute]) -> list[View]:
    return [{"data_type": each.data_type, "value": each.value} for each in attributes]


def admins_view(authorization: Authorization) -> View:
    return {
        "admins": attributes_view(authorization.admins),
        "readers": attributes_view(authorization.readers),
        "writers": attributes_view(authorization.writers),
    }


def blacklist_view(entries: Mapping[BlockedKind, tuple[str, ...]]) -> View:
    return {
        "consumers": {
            "event_types": entries[BlockedKind.CONSUMER_EVENT_TYPE],
            "apps": entries[BlockedKind.CONSUMER_APP],
        },
        "producers": {
            "event_types": entries[BlockedKind.PRODUCER_EVENT_TYPE],
            "apps": entries[BlockedKind.PRODUCER_APP],
        },
    }


def features_view(features: Mapping[Feature, bool]) -> View:
    return {"items": [{"feature": feature, "enabled": on} for feature, on in features.items()]}


def storage_view(storage: Storage) -> View:
    return {
        "id": storage.id,
        "default": storage.default,
        f"{storage.type}_configuration": storage.configuration,
        "storage_type": storage.type,
    }


def timeline_view(timeline: Timeline, event_type: str) -> View:
    more = {name: True for name in ("after_loss", "adopted") if getattr(timeline, name)}
    return {
        "id": timeline.id,
        "event_type": event_type,
        "order": timeline.order,
        "storage_id": timeline.storage_id,
        "topic": timeline.topic,
        "created_at": _timestamp_with_offset(timeline.created_at),
        "switched_at": _optional_timestamp_with_offset(timeline.switched_at),
        "cleaned_up_at": _optional_timestamp_with_offset(timeline.cleaned_up_at),
        "latest_position": _end_offsets_view(timeline),
        **more,
    }


def _optional_timestamp_with_offset(moment: datetime | None) -> str | None:
    return None if moment is None else _timestamp_with_offset(moment)


def _end_offsets_view(timeline: Timeline) -> View | None:
    """The last offset of each partition of a closed timeline."""
    if timeline.latest_positions is None:
        return None
    return {"offsets": [timeline.latest_positions[number] for number in sorted(timeline.latest_positions)]}
