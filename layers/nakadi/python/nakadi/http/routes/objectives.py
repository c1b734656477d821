"""Objectives of subscriptions: how soon their events should be consumed, and how well they are met."""

from __future__ import annotations

from msgspec import Struct

from nakadi.http.bodies import object_body
from nakadi.http.drafts import objective_draft
from nakadi.http.message import Request, Response, empty_response, json_response
from nakadi.http.router import Route
from nakadi.http.subscription_views import objective_status_view, objective_view
from nakadi.subscriptions.api.objectives import Objectives


class ObjectiveHandlers(Struct, frozen=True):
    objectives: Objectives

    def routes(self) -> list[Route]:
        one = "/subscriptions/{subscription_id}/objective"
        return [
            Route(method="GET", template=one, handler=self.get, operation="get_objective"),
            Route(
                method="PUT", template=one, handler=self.put, operation="put_objective", changes_cached_documents=True
            ),
            Route(
                method="DELETE",
                template=one,
                handler=self.remove,
                operation="remove_objective",
                changes_cached_documents=True,
            ),
        ]

    def get(self, request: Request) -> Response:
        return json_response(objective_status_view(self.objectives.status(_subscription_id(request), request.subject)))

    def put(self, request: Request) -> Response:
        draft = objective_draft(object_body(request))
        return json_response(objective_view(self.objectives.put(_subscription_id(request), draft, request.subject)))

    def remove(self, request: Request) -> Response:
        self.objectives.remove(_subscription_id(request), request.subject)
        return empty_response(204)


def _subscription_id(request: Request) -> str:
    return request.path_parameters["subscription_id"]
