"""Avro: its schemas, and the binary form of values.

This folder knows the specification of Avro 1.11 and nothing of event types. `types.py` reads schemas,
`compatibility.py` and `evolution.py` hold one against another, `json_schema.py` says what values look like in JSON,
`reading.py` and `writing.py` lead from the binary form to JSON and back, `fingerprint.py` names schemas, and
`envelopes.py` has the schemas in which clients send and get batches. Begin with `types.py`.
"""
