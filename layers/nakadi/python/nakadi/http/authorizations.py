"""Authorization sections in request bodies."""

from __future__ import annotations

from nakadi.http.bodies import Members
from nakadi.model.administration import AdminLists
from nakadi.model.authorization import Attribute, AttributeDraft, AuthorizationDraft
from nakadi.model.outcomes import Violation, Violations

LISTS = ("admins", "readers", "writers")


def authorization_draft(body: Members) -> AuthorizationDraft:
    return AuthorizationDraft(**{name: _attributes(body, name) for name in LISTS})


def _attributes(body: Members, name: str) -> tuple[AttributeDraft, ...] | None:
    members = body.objects(name)
    if members is None:
        return None
    return tuple(AttributeDraft(each.text("data_type"), each.text("value")) for each in members)
