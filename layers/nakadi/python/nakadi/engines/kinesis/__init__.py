"""The event log in a Kinesis stream that all topics share; docs/decisions explains how it numbers events.

This package depends on the model, the ports, the archive, and the shared parts of engines. Begin reading with
`event_log`.
"""
