"""Documents as items of a table."""

from __future__ import annotations

import zlib
from typing import Any

import orjson
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from nakadi.dynamodb.tables import DOCUMENTS
from nakadi.model.outcomes import Invalid
from nakadi.ports import Document, Put

# One read unit pays for so much: a text that is longer costs less packed, one that is not stays legible in a console.
LONGEST_TEXT = 4000

# DynamoDB takes 400 KB for an item with all names and keys, and 1024 bytes for a sort key.
MOST_BYTES = 390_000
LONGEST_KEY = 1024


class DocumentItem(Model):
    """The body is JSON, in `body` or `packed`. `written_by` is new with every write: by it, a writer knows its own."""

    class Meta:
        table_name = DOCUMENTS.suffix  # every registry has a model with the full name of its own table

    kind = UnicodeAttribute(hash_key=True)
    key = UnicodeAttribute(range_key=True)
    revision = NumberAttribute()
    body = UnicodeAttribute(null=True)
    packed = BinaryAttribute(null=True, legacy_encoding=False)
    written_by = UnicodeAttribute()


def contents_of(put: Put) -> dict[str, Any]:
    """The attributes that hold a body. Raises `Invalid` for what no item can hold."""
    if not can_be_a_key(put.key):
        raise Invalid(f"{put.kind} cannot be kept under so long a name")
    text = orjson.dumps(put.body)
    if len(text) <= LONGEST_TEXT:
        return {"body": text.decode(), "packed": None}
    packed = zlib.compress(text)
    if len(packed) > MOST_BYTES:
        raise Invalid(f"{put.key} is too large to be kept: packed, it has {len(packed)} bytes of {MOST_BYTES} possible")
    return {"body": None, "packed": packed}


def document_of(item: DocumentItem) -> Document:
    text = item.body if item.packed is None else zlib.decompress(item.packed)
    return Document(item.key, orjson.loads(text), int(item.revision))


def can_be_a_key(key: str) -> bool:
    return 0 < len(key.encode()) <= LONGEST_KEY
