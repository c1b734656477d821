"""Publishing: a batch is read, validated, partitioned, enriched, and appended to the log of its event type.

It knows event types, schemas and permissions through their rooms, the log through its port, and nothing of HTTP.
Begin reading with `publishing_task` in `publisher`: it has the whole way of a batch. `system_events` are the broker's
own.
"""
