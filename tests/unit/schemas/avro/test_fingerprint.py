"""The fingerprints that identify the Avro schema of a message."""

import json

import pytest

from nakadi.schemas.avro.envelopes import BATCH_SCHEMAS
from nakadi.schemas.avro.fingerprint import schema_fingerprint
from tests.support.avro import ORDER, fingerprint


@pytest.mark.parametrize("schema", [ORDER, "string", BATCH_SCHEMAS["batch.publishing"]["1"]])
def test_a_fingerprint_is_that_of_fastavro(schema):
    """A fingerprint is the CRC-64-AVRO of the canonical form, with the lowest byte first. (P145)"""
    assert schema_fingerprint(json.dumps(schema)) == fingerprint(schema)


def test_the_fingerprint_of_batches_is_that_of_the_reference():
    """The fingerprint of the batch schema is the one that existing producers send. (P145)"""
    assert schema_fingerprint(json.dumps(BATCH_SCHEMAS["batch.publishing"]["1"])).hex() == "9c6b2afa57662485"
