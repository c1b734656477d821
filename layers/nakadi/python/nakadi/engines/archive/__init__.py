"""The archive: the older half of an event log, as objects in a folder or in S3; and the log that combines this half
with a hot log.

This package depends on the model and the ports, and on no other engine. Begin reading with `tiered_log`.
"""
