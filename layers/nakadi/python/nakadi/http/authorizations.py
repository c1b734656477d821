"""Authorization sections in request bodies."""

from __future__ import annotations

from nakadi.access.lists import EVENT_TYPE_LISTS, violations
from nakadi.catalog.drafts import attributes
from nakadi.http.bodies import Members
from nakadi.model.administration import AdminLists
from nakadi.model.authorization import AttributeDraft, AuthorizationDraft
from nakadi.model.outcomes import Violations


def authorization_draft(body: Members) -> AuthorizationDraft:
    return AuthorizationDraft(**{name: _attributes(body, name) for name in EVENT_TYPE_LISTS})


def admin_lists(draft: AuthorizationDraft) -> AdminLists:
    """The lists of the broker's administrators, none of which may be missing or empty."""
    found = tuple(violations(draft, EVENT_TYPE_LISTS, prefix=""))
    if found:
        raise Violations(found)
    return AdminLists(
        admins=attributes(draft.admins), readers=attributes(draft.readers), writers=attributes(draft.writers)
    )


def _attributes(body: Members, name: str) -> tuple[AttributeDraft, ...] | None:
    members = body.objects(name)
    if members is None:
        return None
    return tuple(AttributeDraft(each.text("data_type"), each.text("value")) for each in members)
