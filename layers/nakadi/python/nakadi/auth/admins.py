"""The administrators of the broker."""

from __future__ import annotations

from nakadi.auth.features import Features
from nakadi.auth.settings_document import SettingsBody, SettingsDocument
from nakadi.model.authorization import (
    Attribute,
    Authorization,
    Operation,
    Subject,
)
from nakadi.model.outcomes import NotPermitted


class Admins:
    """The lists of administrators. The deployment's default administrators are in each list, and nobody can remove
    them.
    """

    def __init__(self, document: SettingsDocument, features: Features, default: tuple[Attribute, ...]) -> None:
        self._document = document
        self._features = features
        self._default = default

    def authorization(self) -> Authorization:
        body = self._document.read()
        return Authorization(
            admins=self._with_default(body, "admins"),
            readers=self._with_default(body, "readers"),
            writers=self._with_default(body, "writers"),
        )

    def replace(self, lists: Authorization) -> None:
        self._features.require_writes_allowed()
        body = {
            "admins": self._without_default(lists.admins),
            "readers": self._without_default(lists.readers),
            "writers": self._without_default(lists.writers),
        }
        self._document.change(lambda _: body)

    def contains(self, subject: Subject, permission: Operation) -> bool:
        """Whether the subject is an administrator with this permission; while authentication is off, everyone is."""
        return subject.trusted or subject.has_one_of(self.authorization().attributes_granting(permission))

    def require(
        self,
        subject: Subject,
        permission: Operation,
        refusal: str = "Admin privileges are required to perform this operation",
    ) -> None:
        if not self.contains(subject, permission):
            raise NotPermitted(refusal)

    def _with_default(self, body: SettingsBody, name: str) -> tuple[Attribute, ...]:
        stored = tuple(Attribute(*pair) for pair in body.get(name, ()))
        return tuple(dict.fromkeys(self._default + stored))

    def _without_default(self, attributes: tuple[Attribute, ...]) -> list[list[str]]:
        """The attributes to store: without repetitions, and without the default administrators."""
        kept = [each for each in dict.fromkeys(attributes) if each not in self._default]
        return [[each.data_type, each.value] for each in kept]
