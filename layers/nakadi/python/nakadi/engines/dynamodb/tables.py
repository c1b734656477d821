"""The tables in DynamoDB: described once, for the engines that use them and for the deployment that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Table(Struct, frozen=True, kw_only=True):
    """A table is called `<prefix>-<suffix>`. Keys are attribute names with their types; `expires` is a time to live."""

    suffix: str
    partition_key: tuple[str, str]
    sort_key: tuple[str, str] | None = None
    expires: str | None = None

    def name(self, prefix: str) -> str:
        return f"{prefix}-{self.suffix}"

    def request(self, prefix: str) -> Mapping[str, Any]:
        """What CreateTable is asked for; a time to live is switched on separately."""
        keys = [self.partition_key, *([self.sort_key] if self.sort_key else [])]
        return {
            "TableName": self.name(prefix),
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": kind} for name, kind in keys],
            "KeySchema": [
                {"AttributeName": name, "KeyType": role}
                for (name, _), role in zip(keys, ("HASH", "RANGE"), strict=False)
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }


DOCUMENTS = Table(suffix="documents", partition_key=("kind", "S"), sort_key=("key", "S"))

LOG_INDEX = Table(suffix="log-index", partition_key=("place", "S"), sort_key=("item", "S"))

COORDINATION = Table(suffix="coordination", partition_key=("place", "S"), sort_key=("item", "S"), expires="expires")

TABLES = (DOCUMENTS, LOG_INDEX, COORDINATION)
