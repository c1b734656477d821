"""The errors of queries. Each message is a sentence for the person who asked."""

from __future__ import annotations


class BadQuery(Exception):
    """Raised for a query that is no query, does what queries may not, or names something that does not exist."""


class QueryStopped(Exception):
    """Raised when a query takes more time or memory than it may."""
