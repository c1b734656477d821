"""Avro files, compared with fastavro."""

import json
from io import BytesIO

import fastavro
import pytest

from nakadi.common.avro_files import AvroFile, BadAvro, read_avro_file, write_avro_file

SCHEMA = {
    "type": "record",
    "name": "entry",
    "fields": [
        {"name": "path", "type": "string"},
        {"name": "size", "type": "long"},
        {"name": "count", "type": ["null", "int"], "default": None},
        {"name": "share", "type": "double"},
        {"name": "ratio", "type": "float"},
        {"name": "done", "type": "boolean"},
        {"name": "mark", "type": {"type": "fixed", "name": "mark", "size": 3}},
        {"name": "names", "type": {"type": "map", "values": "string"}},
        {
            "name": "bounds",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "bound",
                        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}],
                    },
                },
            ],
        },
    ],
}


def an_entry(size, **changes):
    entry = {"path": "s3://tables/ä.avro", "size": size, "count": None, "share": 0.1, "ratio": 0.5, "done": True}
    return {**entry, "mark": b"abc", "names": {"a": "b"}, "bounds": [{"key": 3, "value": b"\x00\xff"}], **changes}


ENTRIES = [
    an_entry(0),
    *(an_entry(size, count=-size % 1000) for size in (1, -1, 63, 64, -64, -65, 2**31, 2**63 - 1, -(2**63))),
    an_entry(7, bounds=None, names={}, done=False),
    an_entry(8, bounds=[]),
]


def with_pairs(entries):
    """Entries as the broker's reader returns them: maps are lists of pairs."""
    return [{**each, "names": [*each["names"].items()]} for each in entries]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_file_of_others_is_read(codec):
    """From a file that fastavro has written, the records of several blocks are read, and the metadata in the header."""
    content = BytesIO()
    fastavro.writer(content, SCHEMA, ENTRIES, codec, metadata={"content": "data"}, sync_interval=100)

    found = read_avro_file(content.getvalue())

    assert found.records == with_pairs(ENTRIES)
    assert found.header["content"] == b"data"


@pytest.mark.parametrize("entries", [ENTRIES, []])
def test_others_read_what_is_written(entries):
    """fastavro reads the records and the metadata of a written file. If the broker reads that file and writes it again,
    the bytes are the same.
    """
    file = AvroFile({"avro.schema": json.dumps(SCHEMA).encode(), "content": b"data"}, b"s" * 16, with_pairs(entries))

    content = write_avro_file(file)

    found = fastavro.reader(BytesIO(content))
    assert list(found) == entries
    assert found.metadata["content"] == "data"
    assert write_avro_file(read_avro_file(content)) == content


def test_what_is_no_avro_is_refused():
    """Content of another kind, and content that ends too early, is refused with a reason."""
    whole = write_avro_file(AvroFile({"avro.schema": json.dumps(SCHEMA).encode()}, b"s" * 16, with_pairs(ENTRIES)))
    for broken in (b"", b"PAR1", whole[:-1], whole[:40], whole + b"\x02", whole[:-16] + bytes(16)):
        with pytest.raises(BadAvro):
            read_avro_file(broken)
