"""Where tables are, and models that find them there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

from pynamodb.connection import Connection
from pynamodb.models import Model

from nakadi.botocore_sessions import new_session
from nakadi.dynamodb.calls import CONNECT_SECONDS, READ_SECONDS
from nakadi.dynamodb.tables import Table

CONNECTIONS = 50

Items = TypeVar("Items", bound=Model)


class NoTables(ValueError):
    """Raised for a URL that names no tables."""


@dataclass(frozen=True, slots=True)
class Address:
    """The tables with a prefix, in a region, perhaps behind an endpoint of one's own."""

    prefix: str
    region: str | None = None
    endpoint: str | None = None

    def bound(self, model: type[Items], table: Table) -> type[Items]:
        """A model with the full name of its own table."""
        meta = {
            "table_name": table.name(self.prefix),
            "region": self.region,
            "host": self.endpoint,
            "connect_timeout_seconds": CONNECT_SECONDS,
            "read_timeout_seconds": READ_SECONDS,
            "max_retry_attempts": 0,
            "max_pool_connections": CONNECTIONS,
        }
        return type("Items", (model,), {"Meta": type("Meta", (), meta)})


def address_in(url: str) -> Address:
    """`dynamodb://table-prefix?region=…&endpoint=…`, taken apart."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise NoTables(f"{url!r} names no tables; it should be like dynamodb://prefix?region=eu-central-1")
    wishes = dict(parse_qsl(parts.query))
    return Address(parts.netloc, wishes.get("region"), wishes.get("endpoint"))


def connected(items: type[Model]) -> Connection:
    """What PynamoDB keeps to itself, with its client: by itself it makes one for each thread, when that first asks."""
    connection: Connection = items._get_connection().connection  # noqa: SLF001  # see above
    connection._local.session = new_session()  # noqa: SLF001  # see above
    assert connection.client
    return connection
