"""Claims on ids of events, as items of the coordination's table, which DynamoDB removes after they have expired.

Each claim is a separate item, and each change of a claim is one conditional write. A write whose answer is lost is
repeated, and finds its own result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil
from typing import TypeVar

import msgspec
from pynamodb.exceptions import DeleteError, PutError
from pynamodb.expressions.condition import Condition

from nakadi.engines.dynamodb.client import CallRetryPolicy, is_condition_failure
from nakadi.engines.dynamodb.coordination_table import CoordinationItem, CoordinationTable
from nakadi.engines.dynamodb.table_address import TableAddress
from nakadi.engines.dynamodb.tables import EID_CLAIM_KEY_PREFIX
from nakadi.model.outcomes import Unavailable
from nakadi.ports.eid_claims import EidClaim

CLAIM_SORT_KEY = "claim"

CLAIM_THREADS = 16
"""How many claims of one call are written at the same time."""

MAX_CLAIM_ATTEMPTS = 3
"""How often a claim is attempted: a conflicting claim may be removed before it is read, and then the new claim is
attempted again.
"""

Item = CoordinationItem
Result = TypeVar("Result")

_DECODER = msgspec.msgpack.Decoder(EidClaim)


class DynamoDbEidClaims:
    def __init__(self, address: TableAddress, attempts: CallRetryPolicy | None = None) -> None:
        self._table = CoordinationTable(address, attempts or CallRetryPolicy())
        self._threads = ThreadPoolExecutor(CLAIM_THREADS, thread_name_prefix="nakadi-claim")

    def claim(self, wanted: Sequence[EidClaim]) -> Mapping[bytes, EidClaim]:
        found = self._call_in_threads([partial(self._claim_one, each) for each in wanted])
        return {each.key: standing for each, standing in zip(wanted, found, strict=True) if standing is not None}

    def replace(self, changes: Sequence[tuple[EidClaim, EidClaim]]) -> Collection[bytes]:
        made = self._call_in_threads([partial(self._replace_one, old, new) for old, new in changes])
        return [new.key for (_, new), is_made in zip(changes, made, strict=True) if is_made]

    def remove(self, claims: Sequence[EidClaim]) -> None:
        self._call_in_threads([partial(self._remove_one, each) for each in claims])

    def close(self) -> None:
        # Refuse new calls, and let calls in progress finish, before the table is closed.
        self._table.refuse_calls()
        self._threads.shutdown()
        self._table.close()

    def _call_in_threads(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        self._table.check_open()
        if len(calls) == 1:
            return [calls[0]()]
        return list(self._threads.map(lambda call: call(), calls))

    def _claim_one(self, wanted: EidClaim) -> EidClaim | None:
        """Make a claim; return the conflicting one, if there is one."""
        for _ in range(MAX_CLAIM_ATTEMPTS):
            if self._put(wanted, Item.partition_key.does_not_exist() | _has_token(wanted)):
                return None
            found = self._table.find_item(_partition_key(wanted), CLAIM_SORT_KEY)
            if found is not None:
                return _DECODER.decode(found.packed)
        raise Unavailable("DynamoDB: a claim was made and removed again and again.")

    def _replace_one(self, old: EidClaim, new: EidClaim) -> bool:
        return self._put(new, (Item.packed == _pack(old)) | (Item.packed == _pack(new)))

    def _remove_one(self, claim: EidClaim) -> None:
        item = self._table.items(_partition_key(claim), CLAIM_SORT_KEY)

        def attempt(_: bool) -> None:
            try:
                item.delete(condition=_has_token(claim))
            except DeleteError as error:
                if not is_condition_failure(error):
                    raise

        self._table.attempts.call_with_retries(attempt)

    def _put(self, claim: EidClaim, condition: Condition) -> bool:
        item = self._table.items(
            _partition_key(claim),
            CLAIM_SORT_KEY,
            packed=_pack(claim),
            token=claim.token,
            expires=ceil(claim.expires_at.timestamp()),
        )

        def attempt(_: bool) -> bool:
            try:
                item.save(condition=condition)
            except PutError as error:
                if is_condition_failure(error):
                    return False
                raise
            return True

        return self._table.attempts.call_with_retries(attempt)


def _partition_key(claim: EidClaim) -> str:
    return f"{EID_CLAIM_KEY_PREFIX}{claim.key.hex()}"


def _has_token(claim: EidClaim) -> Condition:
    return Item.token == claim.token


def _pack(claim: EidClaim) -> bytes:
    return msgspec.msgpack.encode(claim)
