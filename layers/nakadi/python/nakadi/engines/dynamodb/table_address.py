"""Where the tables of a deployment are, and connections to them."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct
from pynamodb.connection import Connection
from pynamodb.models import Model

from nakadi.engines.common.aws_sessions import new_session
from nakadi.engines.dynamodb.client import CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS
from nakadi.engines.dynamodb.tables import Table
from nakadi.model.outcomes import BadSetting

MAX_CONNECTIONS = 50

BoundModel = TypeVar("BoundModel", bound=Model)


def model_meta(table: Table) -> Any:
    return type("Meta", (), {"table_name": table.name_suffix})


class TableAddress(Struct, frozen=True):
    """The prefix of the tables' names, their region, and perhaps a custom endpoint."""

    prefix: str
    region: str | None = None
    endpoint: str | None = None

    def bind_model(self, model: type[BoundModel], table: Table) -> type[BoundModel]:
        meta = {
            "table_name": table.full_name(self.prefix),
            "region": self.region,
            "host": self.endpoint,
            "connect_timeout_seconds": CONNECT_TIMEOUT_SECONDS,
            "read_timeout_seconds": READ_TIMEOUT_SECONDS,
            "max_retry_attempts": 0,
            "max_pool_connections": MAX_CONNECTIONS,
        }
        return type("Items", (model,), {"Meta": type("Meta", (), meta)})


def parse_table_address(url: str) -> TableAddress:
    parts = urlsplit(url)
    if not parts.netloc:
        raise BadSetting(f"{url!r} names no tables; it should be like dynamodb://prefix?region=eu-central-1")
    wishes = dict(parse_qsl(parts.query))
    return TableAddress(parts.netloc, wishes.get("region"), wishes.get("endpoint"))


def connect(items: type[Model]) -> Connection:
    """Connect a model, and return PynamoDB's private connection with its client. By default, PynamoDB creates a client
    for each thread, at that thread's first call."""
    connection: Connection = items._get_connection().connection  # noqa: SLF001  # see above
    connection._local.session = new_session()  # noqa: SLF001  # see above
    assert connection.client
    return connection
