"""Subscriptions as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from msgspec import to_builtins
from msgspec.structs import asdict

from nakadi.http.reader_views import read_change_view
from nakadi.http.views import View, attributes_view, timestamp
from nakadi.model.annotations import SUBSCRIPTION_ANNOTATIONS, annotation_warnings
from nakadi.model.authorization import Authorization
from nakadi.model.event_type import Position
from nakadi.model.objective import Objective
from nakadi.model.subscription import CommitResult, EventTypePartition, Subscription

if TYPE_CHECKING:
    from nakadi.subscriptions.api.objectives import ObjectiveStatus
    from nakadi.subscriptions.api.reads import ChangedRead
    from nakadi.subscriptions.api.stats import PartitionStats, StatsByEventType


def subscription_view(subscription: Subscription, status: StatsByEventType | None = None) -> View:
    view: View = {
        "owning_application": subscription.owning_application,
        "event_types": subscription.event_types,
        "consumer_group": subscription.consumer_group,
        "read_from": subscription.read_from,
        "initial_cursors": [asdict(each) for each in subscription.initial_cursors],
        "authorization": _subscription_authorization_view(subscription.authorization),
        "annotations": subscription.annotations,
        "labels": subscription.labels,
        "id": subscription.id,
        "created_at": timestamp(subscription.created_at),
        "updated_at": timestamp(subscription.updated_at),
    }
    if subscription.objective is not None:
        view["objective"] = objective_view(subscription.objective)
    if subscription.reads is not None:
        view |= {"reads": subscription.reads, "projection": subscription.projection}
    if warnings := annotation_warnings(subscription.annotations, SUBSCRIPTION_ANNOTATIONS):
        view["warnings"] = warnings
    if status is not None:
        view["status"] = subscription_stats_view(status)
    return view


def objective_view(objective: Objective) -> View:
    return {
        "percent": objective.percent,
        "within_seconds": objective.within_seconds,
        "set_at": timestamp(objective.set_at),
    }


def objective_status_view(status: ObjectiveStatus) -> View:
    view = {**objective_counts_view(status), "pressure": status.pressure}
    if status.slowest is not None:
        slowest = {name: value for name, value in to_builtins(status.slowest).items() if value is not None}
        view["slowest_partition"] = slowest
    return view


def objective_counts_view(status: ObjectiveStatus) -> View:
    """The part of a status that needs no read of the log."""
    return {**objective_view(status.objective), "windows": [to_builtins(each) for each in status.windows]}


def changed_reads_view(changed: Sequence[ChangedRead]) -> View:
    """The changes in the members that the subscription reads, if there are any."""
    listed = [
        {"event_type": each.event_type, "version": each.version, **read_change_view(each.change)} for each in changed
    ]
    return {"changed_reads": listed} if listed else {}


def _subscription_authorization_view(authorization: Authorization | None) -> View | None:
    if authorization is None:
        return None
    return {"admins": attributes_view(authorization.admins), "readers": attributes_view(authorization.readers)}


def committed_cursors_view(committed: Sequence[tuple[EventTypePartition, Position]]) -> View:
    return {
        "items": [
            {
                "partition": partition.partition,
                "offset": str(position),
                "event_type": partition.event_type,
                "cursor_token": str(uuid4()),
            }
            for partition, position in committed
        ]
    }


def cursor_results_view(items: Sequence[Mapping[str, str]], results: Sequence[CommitResult]) -> View:
    """The result of each cursor, together with the cursor as the client sent it."""
    names = ("partition", "offset", "event_type", "cursor_token")
    return {
        "items": [
            {"cursor": {name: item[name] for name in names}, "result": verdict}
            for item, verdict in zip(items, results, strict=True)
        ]
    }


def subscription_stats_view(stats: StatsByEventType) -> list[View]:
    return [
        {"event_type": event_type, "partitions": [_partition_stats_view(each) for each in partitions]}
        for event_type, partitions in stats.items()
    ]


def _partition_stats_view(stats: PartitionStats) -> View:
    view: View = {
        "partition": stats.partition,
        "state": stats.state,
        "unconsumed_events": stats.unconsumed_events,
        "consumer_lag_seconds": stats.lag_seconds,
        "stream_id": stats.stream_id,
        "assignment_type": stats.assignment_type,
        "stalled": stats.stalled or None,
        "unreadable": stats.unreadable or None,
    }
    return {name: value for name, value in view.items() if value is not None}
