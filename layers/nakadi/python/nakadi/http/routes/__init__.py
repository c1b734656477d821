"""The routes, one module per area: each offers its `routes`, and every handler is a doorway of a few lines."""

from nakadi.http.routes import (
    cursors,
    documentation,
    event_types,
    monitoring,
    publishing,
    registry,
    schemas,
    settings,
    storages,
    streams,
    timelines,
)

__all__ = [
    "cursors",
    "documentation",
    "event_types",
    "monitoring",
    "publishing",
    "registry",
    "schemas",
    "settings",
    "storages",
    "streams",
    "timelines",
]
