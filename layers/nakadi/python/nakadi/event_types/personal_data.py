"""Which members of events are personal data, as an annotation states.

    nakadi.io/personal-data: "customer.id, customer.email"

This information is for those who read tables: `personal_data_paths` goes into the properties of the tables, and into
dbt sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nakadi.model.annotations import PERSONAL_DATA_ANNOTATION

_PATH_PATTERN = re.compile(r"[^\s,.]+(\.[^\s,.]+)*")


class BadPersonalData(Exception):
    """Raised for an annotation that is not a list of paths; the message names it."""


def personal_data_paths(annotations: Mapping[str, str | None]) -> tuple[str, ...]:
    """The paths that the annotation names, each once, ordered. Raises `BadPersonalData`."""
    text = annotations.get(PERSONAL_DATA_ANNOTATION)
    if text is None:
        return ()
    paths = {path.strip() for path in text.split(",")}
    for path in sorted(paths):
        if not _PATH_PATTERN.fullmatch(path):
            raise BadPersonalData(
                f'Annotation {PERSONAL_DATA_ANNOTATION} is not valid: "{path}" is not the path of a member, such as '
                f'customer.email. Provided value: "{text}".'
            )
    return tuple(sorted(paths))
