"""Searches every byte of every file in a folder or bucket for a text, with and without compression."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import zstandard

SYNC_BYTES = 16


def list_files_in(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def objects_in(client: Any, bucket: str) -> Mapping[str, bytes]:
    """The objects of a bucket, with all their versions, even deleted ones. Fail if an upload is unfinished."""
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")
    found = {}
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for each in page.get("Versions", ()):
            wanted = {"Bucket": bucket, "Key": each["Key"], "VersionId": each["VersionId"]}
            found[f"{each['Key']}@{each['VersionId']}"] = client.get_object(**wanted)["Body"].read()
    return found


def find_files_with_text(text: str, files: Mapping[str, bytes]) -> list[str]:
    """The names of the files that have a text in them."""
    return sorted(name for name, content in files.items() if text.encode() in decompress_all(content))


def decompress_all(content: bytes) -> bytes:
    """The bytes of a file, as they are and decompressed. The first bytes show the format."""
    if content.startswith(b"\x1f\x8b"):
        return content + gzip.decompress(content)
    if content.startswith(b"PAR1"):
        # Parquet: the values of all pages, in any encoding; the statistics of columns are uncompressed in the file
        # itself.
        return content + repr(pq.ParquetFile(BytesIO(content)).read().to_pylist()).encode()
    if content.startswith(b"Obj\x01"):
        # Avro: each block ends with the same sync mark as the header, and begins with two numbers.
        header, *blocks = content.split(content[-SYNC_BYTES:])
        return header + b"".join(_decompress(block) for block in blocks if block)
    return content


def _decompress(block: bytes) -> bytes:
    at = 0
    for _ in range(2):
        while block[at] & 0x80:
            at += 1
        at += 1
    packed = block[at:]
    if packed.startswith(zstandard.MAGIC_NUMBER.to_bytes(4, "little")):
        return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    return zlib.decompress(packed, -zlib.MAX_WBITS)


def list_file_kinds(files: Mapping[str, bytes]) -> Iterator[str]:
    """The extensions of the files' names."""
    return (Path(name.partition("@")[0]).suffix for name in files)
