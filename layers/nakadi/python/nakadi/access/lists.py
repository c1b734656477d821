"""What makes the lists of an authorization section right or wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from nakadi.model.authorization import Attribute, AttributeDraft, Authorization, AuthorizationDraft, Operation
from nakadi.model.outcomes import Invalid, Violation
from nakadi.model.sizes import MOST_ATTRIBUTES, size_violations

EVENT_TYPE_LISTS = ("admins", "readers", "writers")
SUBSCRIPTION_LISTS = ("admins", "readers")


def violations(draft: AuthorizationDraft, names: Iterable[str], prefix: str = "authorization.") -> Iterator[Violation]:
    """The lists of these names must be there, and have attributes that are complete."""
    lists = dict(draft.lists())
    for name in names:
        yield from _list_violations(f"{prefix}{name}", lists[name])


def _list_violations(path: str, attributes: tuple[AttributeDraft, ...] | None) -> Iterator[Violation]:
    if attributes is None:
        yield Violation(path, "must not be null")
    elif not attributes:
        yield Violation(path, "must contain at least one attribute")
    yield from size_violations(path, attributes, MOST_ATTRIBUTES)
    for index, attribute in enumerate((attributes or ())[:MOST_ATTRIBUTES]):
        for name, text in (("data_type", attribute.data_type), ("value", attribute.value)):
            if text is None:
                yield Violation(f"{path}[{index}].{name}", "must not be null")
            yield from size_violations(f"{path}[{index}].{name}", text)


def check_no_duplicates(authorization: Authorization) -> None:
    told = [
        f"authorization property '{operation}' contains duplicated attribute(s): {', '.join(map(str, duplicates))}"
        for operation in (Operation.ADMIN, Operation.READ, Operation.WRITE)
        if (duplicates := _duplicates(authorization.granting(operation)))
    ]
    if told:
        raise Invalid("; ".join(told))


def _duplicates(attributes: tuple[Attribute, ...]) -> list[Attribute]:
    return [attribute for attribute, count in Counter(attributes).items() if count > 1]


def check_not_removed(old: Authorization | None, new: object | None) -> None:
    """Whoever could open a resource to everyone by leaving its lists out would do so by accident."""
    if old is not None and new is None:
        raise Invalid("Changing authorization object to `null` is not possible due to existing one")
