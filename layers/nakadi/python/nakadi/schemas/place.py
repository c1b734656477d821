"""Places in a schema."""

from __future__ import annotations

from dataclasses import dataclass


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
        """As the API tells faults: `#/properties/a`, and `#` for the root."""
        return "#" + "".join(f"/{step}" for step in self._steps())

    def _steps(self) -> list[str]:
        steps = []
        place = self
        while place.around is not None:
            steps.append(place.step)
            place = place.around
        return steps[::-1]


ROOT = Place()
