"""The `authorization` section of a resource: its lists as JSON, and the checks when a client sets them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import asdict

from nakadi.model.authorization import (
    Attribute,
    Authorization,
    AuthorizationDraft,
    Operation,
)
from nakadi.model.outcomes import Invalid


def authorization_body(draft: AuthorizationDraft | None) -> dict[str, Any] | None:
    """An `authorization` section in the form of the API description."""
    if draft is None:
        return None
    return {name: None if listed is None else [asdict(each) for each in listed] for name, listed in draft.named_lists()}


def check_no_duplicates_in_lists(authorization: Authorization) -> None:
    problems = [
        f"authorization property '{operation}' contains duplicated attribute(s): {', '.join(map(str, duplicates))}"
        for operation in (Operation.ADMIN, Operation.READ, Operation.WRITE)
        if (duplicates := _duplicates(authorization.attributes_granting(operation)))
    ]
    if problems:
        raise Invalid("; ".join(problems))


def _duplicates(attributes: tuple[Attribute, ...]) -> list[Attribute]:
    return [attribute for attribute, count in Counter(attributes).items() if count > 1]


def check_authorization_not_removed(old: Authorization | None, new: object | None) -> None:
    """Refuse a request that omits the lists of a resource that has some: an accidental omission would open it to
    everyone.
    """
    if old is not None and new is None:
        raise Invalid("Changing authorization object to `null` is not possible due to existing one")
