"""The errors of queries. Each message is a sentence for the person who asked."""

from __future__ import annotations


class BadQuery(Exception):
    """Raised for a query that is no query, does what queries may not, or names something that does not exist."""


class NoTable(BadQuery):
    """Raised if a table that the broker knows is not at the place of the tables."""


class TablesUnreadable(BadQuery):
    """Raised if the place of the tables does not answer, or refuses to."""


class PackageMissing(BadQuery):
    """Raised if a package that reads the tables is not installed."""


class QueryStopped(Exception):
    """Raised when a query takes more time or memory than it may."""
