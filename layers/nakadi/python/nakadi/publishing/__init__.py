"""Publishing: a batch is read, validated, partitioned, enriched, and appended to the log of its event type.

It knows event types, schemas and permissions through their rooms, the log through its port, and nothing of HTTP. Begin
reading with `publisher`, whose `_publish_to` calls the steps in their order; `system_events` are those of the broker.
"""
