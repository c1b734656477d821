"""Places in a schema."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote_plus


@dataclass(frozen=True, slots=True)
class Place:
    """A place, known by the step to it from the place around it.

    It is spelt out only when it is told to somebody: names may be long, and many places share the names on their way.
    """

    step: str = ""
    around: Place | None = None

    def __truediv__(self, step: str) -> Place:
        return Place(step, self)

    @property
    def path(self) -> str:
        """As the API tells changes: `#/properties/a`, and `#/` for the root."""
        return "#/" + "/".join(self._steps())

    @property
    def pointer(self) -> str:
        """As a JSON pointer, which is how the API tells what is not permitted: `#/properties/a`, `#` for the root."""
        return "#" + "".join(f"/{escaped(step)}" for step in self._steps())

    @property
    def fragment(self) -> str:
        """As a part of a URL, which is how the API tells faults: `#/properties/a%2Fb`, `#` for the root."""
        return "#" + "".join(
            f"/{quote_plus(step, safe='*', errors='replace').replace('~', '%7E')}" for step in self._steps()
        )

    def down(self, steps: Iterable[str]) -> Place:
        """The place at the end of a way."""
        place = self
        for step in steps:
            place /= step
        return place

    def _steps(self) -> list[str]:
        steps = []
        place = self
        while place.around is not None:
            steps.append(place.step)
            place = place.around
        return steps[::-1]


ROOT = Place()


def escaped(step: str) -> str:
    """A step of a JSON pointer."""
    return step.replace("~", "~0").replace("/", "~1")
