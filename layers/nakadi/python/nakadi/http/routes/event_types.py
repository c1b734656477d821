"""Event types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from nakadi.auth.features import Features
from nakadi.auth.permissions import Permissions
from nakadi.event_types.creation import EventTypeCreation
from nakadi.event_types.deletion import EventTypeDeletion
from nakadi.event_types.readers import SchemaReaders
from nakadi.event_types.repartitioning import Repartitioning
from nakadi.event_types.repository import EVENT_TYPES_PAGE_SIZE, EventTypes
from nakadi.event_types.table_objective import TableObjectiveStatus
from nakadi.event_types.update import EventTypeUpdate
from nakadi.http.bodies import object_body
from nakadi.http.drafts import attribute_parameter, event_type_draft
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.parameters import FlagParameter, IntegerParameter, ListParameter, TextParameter
from nakadi.http.reader_views import event_type_readers_view
from nakadi.http.router import Route
from nakadi.http.views import (
    event_type_view,
    forecast_view,
    measured_statistics_view,
    table_objective_view,
    table_run_view,
    table_state_view,
)
from nakadi.model.annotations import EVENT_TYPE_ANNOTATIONS, annotation_warnings
from nakadi.model.authorization import Attribute, Feature, Operation
from nakadi.model.event_type import CleanupPolicy, EventType
from nakadi.model.outcomes import Malformed, Violations
from nakadi.model.reads import AffectedReader, Reader
from nakadi.openapi.checks import openapi_violations

OWNING_APPLICATION, WRITER, AFTER = TextParameter("owning_application"), TextParameter("writer"), TextParameter("after")
LIMIT = IntegerParameter("limit", None)
DRY_RUN = FlagParameter("dry_run")
FORCE = ListParameter("force")


class WarningTexts(Struct, frozen=True):
    """The text of the `Warning` header in answers to the creation and to changes of an event type."""

    data_access: str
    compaction: str

    def warning_header(self, event_type: EventType, affected: Sequence[AffectedReader] = ()) -> Mapping[str, str]:
        compacted = event_type.cleanup_policy is CleanupPolicy.COMPACT
        mistakes = annotation_warnings(event_type.annotations, EVENT_TYPE_ANNOTATIONS)
        texts = (self.data_access, self.compaction if compacted else "", *mistakes, readers_warning(affected))
        return {"warning": f'299 nakadi "{". ".join(text for text in texts if text)}"'}


MAX_NAMED_READERS = 5
"""How many subscriptions are named in a header of an answer."""

# Applications may have any names, but headers may not contain all of them.
_PLAIN_NAME = re.compile(r"[\w.:/-]{1,100}", re.ASCII)


def readers_warning(affected: Sequence[AffectedReader]) -> str:
    """A sentence that names the readers that will miss members, and their owners; empty if there are none."""
    if not affected:
        return ""
    named = [_reader_name(each.reader) for each in affected[:MAX_NAMED_READERS]]
    more = len(affected) - len(named)
    return f"The schema changes what subscriptions read: {', '.join(named)}{f' and {more} more' if more else ''}"


def _reader_name(reader: Reader) -> str:
    owner = reader.owning_application
    return f"{reader.subscription_id} ({owner})" if _PLAIN_NAME.fullmatch(owner) else reader.subscription_id


class EventTypeHandlers(Struct, frozen=True, kw_only=True):
    event_types: EventTypes
    creation: EventTypeCreation
    update: EventTypeUpdate
    deletion: EventTypeDeletion
    repartitioning: Repartitioning
    readers: SchemaReaders
    permissions: Permissions
    features: Features
    warnings: WarningTexts
    find_table_objective: Callable[[EventType], TableObjectiveStatus | None]
    """Returns how well a table meets its objective; None without an objective, or if no job can read the archive."""

    def routes(self) -> list[Route]:
        all_, one = "/event-types", "/event-types/{name}"
        count = f"{one}/partition-count"
        return [
            Route(
                method="GET",
                template=all_,
                handler=self.list,
                operation="list_event_types",
                parameters=(OWNING_APPLICATION, WRITER, LIMIT, AFTER),
            ),
            Route(method="POST", template=all_, handler=self.create, operation="create_event_type"),
            Route(method="GET", template=one, handler=self.get, operation="get_event_type"),
            Route(
                method="PUT",
                template=one,
                handler=self.replace,
                operation="update_event_type",
                parameters=(DRY_RUN, FORCE),
                changes_cached_documents=True,
                only_reads=DRY_RUN.read,
            ),
            Route(
                method="DELETE",
                template=one,
                handler=self.delete,
                operation="delete_event_type",
                changes_cached_documents=True,
            ),
            Route(
                method="PUT",
                template=count,
                handler=self.repartition,
                operation="set_partition_count",
                changes_cached_documents=True,
            ),
            Route(method="GET", template=f"{one}/readers", handler=self.list_readers, operation="list_readers"),
            Route(
                method="GET", template=f"{one}/table-runs", handler=self.list_table_runs, operation="list_table_runs"
            ),
        ]

    def list(self, request: Request) -> Response:
        application, writer = OWNING_APPLICATION.read(request), attribute_parameter(request, WRITER)
        limit = LIMIT.read(request)
        if limit is not None and not 1 <= limit <= EVENT_TYPES_PAGE_SIZE:
            raise Malformed(f"'limit' parameter should have value between 1 and {EVENT_TYPES_PAGE_SIZE}")
        page_size = EVENT_TYPES_PAGE_SIZE if limit is None or application or writer else limit
        listed = (
            event_type_view(each)
            for each in self.event_types.all(after=AFTER.read(request) or "", page_size=page_size)
            if application in (None, each.owning_application) and (writer is None or _lists_writer(each, writer))
        )
        return json_response(list(islice(listed, limit)))

    def get(self, request: Request) -> Response:
        event_type = self.event_types.get(request.path_parameters["name"])
        self.permissions.require(Operation.VIEW, event_type.resource, request.subject)
        measured = self.event_types.measured_statistics(event_type)
        extra = {} if measured is None else {"measured_statistic": measured_statistics_view(measured)}
        table = self.event_types.table_state(event_type)
        extra |= {} if table is None else {"table": table_state_view(table, event_type)}
        objective = self.find_table_objective(event_type)
        extra |= {} if objective is None else {"table_objective": table_objective_view(objective)}
        return json_response(event_type_view(event_type) | extra)

    def create(self, request: Request) -> Response:
        draft = event_type_draft(object_body(request))
        return self._change_response(self.creation.create(draft, request.subject), 201)

    def replace(self, request: Request) -> Response:
        name, draft = request.path_parameters["name"], event_type_draft(object_body(request))
        force = frozenset(FORCE.read(request))
        if DRY_RUN.read(request):
            return json_response(forecast_view(self.update.forecast(name, draft, request.subject, force)))
        event_type, affected = self.update.update(name, draft, request.subject, force)
        return self._change_response(event_type, 200, affected)

    def delete(self, request: Request) -> Response:
        self.deletion.delete(request.path_parameters["name"], request.subject)
        return empty_response()

    def repartition(self, request: Request) -> Response:
        count = object_body(request).integer("partition_count", bits=32)
        if count is None:
            raise Violations(openapi_violations("PartitionCount", {"partition_count": None}))
        self.repartitioning.set_partition_count(request.path_parameters["name"], count, request.subject)
        return empty_response(204)

    def list_readers(self, request: Request) -> Response:
        return json_response(
            event_type_readers_view(self.readers.show(request.path_parameters["name"], request.subject))
        )

    def list_table_runs(self, request: Request) -> Response:
        event_type = self.event_types.get(request.path_parameters["name"])
        self.permissions.require(Operation.VIEW, event_type.resource, request.subject)
        return json_response({"items": [table_run_view(each) for each in self.event_types.table_runs(event_type).runs]})

    def _change_response(self, event_type: EventType, status: int, affected: Sequence[AffectedReader] = ()) -> Response:
        warning = self.warnings.warning_header(event_type, affected)
        if self.features.is_on(Feature.RETURN_BODY_ON_CREATE_UPDATE_EVENT_TYPE):
            return json_response(event_type_view(event_type), status, warning)
        return empty_response(status, warning)


def _lists_writer(event_type: EventType, writer: Attribute) -> bool:
    """Whether the lists of an event type name this writer. Names are compared literally: a wildcard does not match
    every name.
    """
    return event_type.authorization is not None and writer in event_type.authorization.writers
