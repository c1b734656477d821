"""Spark reads and writes events: `read` and `write` with Spark 3.5 or newer.

    orders = nakadi_spark.read(spark, "https://events.example.org", "order.placed")
    orders.groupBy("customer.country").count().show()

Begin with `reading.py`. Spark itself reads the events in the jobs' table (`tables.py`). Tasks read the events that the
table lacks from the log (`shares.py`), through a broker or from its stores (`sources.py`). `writing.py` publishes rows.
`data_source.py`, for Spark 4, has both as a source and a target with the name `nakadi`, and streams; `batches.py` is
what Spark 3.5 has instead of streams.
"""

from __future__ import annotations

from nakadi_spark.batches import for_each_batch
from nakadi_spark.errors import BadRead, BadWrite
from nakadi_spark.reading import read
from nakadi_spark.sources import Broker, Stores
from nakadi_spark.writing import write

__all__ = ["BadRead", "BadWrite", "Broker", "Stores", "for_each_batch", "read", "write"]
