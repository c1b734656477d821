"""The event log in a Kinesis stream that all topics share; docs/decisions tells how it numbers events."""
