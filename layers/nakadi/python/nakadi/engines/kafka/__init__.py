"""Apache Kafka as the event log: each timeline is a topic, each event a record, and Kafka's offsets are the offsets.

This package depends on the model, the ports, and the shared parts of engines. Only this room imports the client
library. Begin reading with `event_log`. `writing` stores records, `reading` finds them again, `records` defines their
format, `client` connects to a cluster, and `cluster` makes all other requests to it.
"""
