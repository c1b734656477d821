"""The cold half of the log: events in compressed objects that people and Spark can read as they are."""
