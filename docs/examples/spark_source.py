# %% [markdown]
# # Events of a broker in Spark
#
# Start a broker with `make run`, publish a few `order.placed`, and run this cell by cell, or as a whole with
# `PYTHONPATH=layers/nakadi/python:glue_jobs .venv/bin/python docs/examples/spark_source.py`.

# %%
import os
from pathlib import Path

from pyspark.sql import functions as F

from nakadi_jobs.session import open_spark
from nakadi_jobs.source import for_each_batch, read_events

url = os.environ.get("NAKADI_URL", "http://localhost:8080")
folder = Path(os.environ.get("EXAMPLE_FOLDER", "data/example"))
spark = open_spark("example", f"file://{folder.absolute()}/tables", "hadoop", "local[2]", "1g")

# %% [markdown]
# What there is now, from the oldest event on. Each partition is read by a task of its own.

# %%
read = read_events(spark, url, "order.placed")
orders = read.rows.select(
    "partition", "offset", F.from_json("event", "order_number string, total struct<amount double>").alias("order")
)
orders.select("order.*").show()

# %% [markdown]
# New events since then: the next read begins at the cursors of the last one.

# %%
later = read_events(spark, url, "order.placed", after=read.cursors)
print(later.rows.count(), "new events")

# %% [markdown]
# The same repeatedly, with the cursors in a folder. A batch that was not finished comes again with its number, so
# writing it to a place of that number has each event once.


# %%
def write(rows, batch):
    rows.write.mode("overwrite").parquet(str(folder / "orders" / f"batch={batch}"))


for_each_batch(spark, url, "order.placed", write, folder / "checkpoint")
written = spark.read.parquet(str(folder / "orders"))
written.groupBy("batch").count().show()
