"""The tables in DynamoDB, described once: for the engines that use them, and for the deployment that creates them.

Nothing here calls AWS or imports the clients of AWS, which are not installed on a machine that only synthesizes
templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Table(Struct, frozen=True, kw_only=True):
    """A table is called `<prefix>-<suffix>`. Keys are attribute names with their types.
    `expiry_attribute` is a time to live.
    """

    name_suffix: str
    partition_key: tuple[str, str]
    sort_key: tuple[str, str] | None = None
    expiry_attribute: str | None = None

    def full_name(self, prefix: str) -> str:
        return f"{prefix}-{self.name_suffix}"

    def create_request(self, prefix: str) -> Mapping[str, Any]:
        """The arguments of CreateTable; a time to live is switched on separately."""
        keys = [self.partition_key, *([self.sort_key] if self.sort_key else [])]
        return {
            "TableName": self.full_name(prefix),
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": kind} for name, kind in keys],
            "KeySchema": [
                {"AttributeName": name, "KeyType": role}
                for (name, _), role in zip(keys, ("HASH", "RANGE"), strict=False)
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }


DOCUMENTS_TABLE = Table(name_suffix="documents", partition_key=("kind", "S"), sort_key=("key", "S"))

LOG_INDEX_TABLE = Table(name_suffix="log-index", partition_key=("place", "S"), sort_key=("item", "S"))

COORDINATION_TABLE = Table(
    name_suffix="coordination", partition_key=("place", "S"), sort_key=("item", "S"), expiry_attribute="expires"
)

EID_CLAIM_KEY_PREFIX = "eid#"
"""The beginning of the partition keys of claims on event ids, in the coordination's table."""

TABLES = (DOCUMENTS_TABLE, LOG_INDEX_TABLE, COORDINATION_TABLE)
