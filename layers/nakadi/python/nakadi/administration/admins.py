"""Who administrates the broker."""

from __future__ import annotations

from nakadi.administration.documents import Body, SettingsDocument
from nakadi.administration.features import Features
from nakadi.model.administration import AdminLists, AdminPermission
from nakadi.model.authorization import Attribute, Subject
from nakadi.model.outcomes import NotPermitted


class Admins:
    """The stored lists, to each of which the default admins of this deployment belong, come what may."""

    def __init__(self, document: SettingsDocument, features: Features, default: tuple[Attribute, ...]) -> None:
        self._document = document
        self._features = features
        self._default = default

    def lists(self) -> AdminLists:
        body = self._document.read()
        return AdminLists(
            admins=self._with_default(body, "admins"),
            readers=self._with_default(body, "readers"),
            writers=self._with_default(body, "writers"),
        )

    def replace(self, lists: AdminLists) -> None:
        self._features.require_writable()
        body = {
            "admins": self._without_default(lists.admins),
            "readers": self._without_default(lists.readers),
            "writers": self._without_default(lists.writers),
        }
        self._document.change(lambda _: body)

    def include(self, subject: Subject, permission: AdminPermission) -> bool:
        return subject.trusted or subject.has_one_of(self.lists().granting(permission))

    def require(
        self,
        subject: Subject,
        permission: AdminPermission,
        refusal: str = "Admin privileges are required to perform this operation",
    ) -> None:
        if not self.include(subject, permission):
            raise NotPermitted(refusal)

    def _with_default(self, body: Body, name: str) -> tuple[Attribute, ...]:
        stored = tuple(Attribute(*pair) for pair in body.get(name, ()))
        return tuple(dict.fromkeys(self._default + stored))

    def _without_default(self, attributes: tuple[Attribute, ...]) -> list[list[str]]:
        """What is stored: each attribute once, the default ones never."""
        kept = [each for each in dict.fromkeys(attributes) if each not in self._default]
        return [[each.data_type, each.value] for each in kept]
