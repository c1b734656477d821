"""Apache Kafka as the event log: a topic per timeline, a record per event, and Kafka's offsets as the offsets.

It knows the model, the ports, and what engines have in common, and is alone in knowing the client library. Begin
reading with `event_log`; `writing` stores records, `reading` finds them again, `records` is their format, `client`
how a cluster is reached, and `cluster` all else that is asked of it.
"""
