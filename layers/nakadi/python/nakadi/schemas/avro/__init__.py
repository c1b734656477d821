"""Avro: its schemas, and the binary form of values.

This folder implements the specification of Avro 1.11, and does not depend on event types. `types.py` reads schemas,
`compatibility.py` and `evolution.py` compare schemas, `json_schema.py` describes the JSON form of values, `reading.py`
and `writing.py` convert the binary form to JSON and back, `fingerprint.py` names schemas, and `envelopes.py` has the
schemas of the batches that clients send and receive. Begin with `types.py`.
"""
