"""Events out: streams of an event type's partitions, as long as clients care to listen."""
