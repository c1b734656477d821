"""Events in: a batch is read, checked, given its partitions, enriched, and handed to the event log."""
