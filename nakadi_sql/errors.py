"""The errors of queries. Each message is a sentence for the person who asked."""

from __future__ import annotations


class BadQuery(Exception):
    """Raised for a query that is not valid SQL, does what queries may not, or names something that does not exist."""


class NoTable(BadQuery):
    """Raised if a table that the broker knows is not at the given location of the tables."""


class TablesUnreadable(BadQuery):
    """Raised if the catalog or the storage of the tables cannot be reached, or refuses access."""


class PackageMissing(BadQuery):
    """Raised if a package that is needed to read the tables is not installed."""


class QueryStopped(Exception):
    """Raised when a query exceeds one of its limits of time, memory and disk."""
