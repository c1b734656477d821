"""Publishing: a batch is read, validated, partitioned, enriched, and appended to the log of its event type.

This package uses event types, schemas and permissions from their packages, and the log through its port. It does not
depend on HTTP. Begin reading with `publishing_task` in `publisher`, which has all steps of a batch. `system_events`
publishes the broker's own events.
"""
