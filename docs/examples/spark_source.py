# %% [markdown]
# # Events of a broker in Spark
#
# Start a broker with `make run`, publish a few `order.placed`, and run this cell by cell, or as a whole with
# `PYTHONPATH=layers/nakadi/python:glue_jobs:. .venv/bin/python docs/examples/spark_source.py`.

# %%
import os
from pathlib import Path

import nakadi_spark
from nakadi_jobs.session import open_spark

url = os.environ.get("NAKADI_URL", "http://localhost:8080")
event_type = os.environ.get("EXAMPLE_EVENT_TYPE", "order.placed")
folder = Path(os.environ.get("EXAMPLE_FOLDER", "data/example"))
spark = open_spark("example", f"file://{folder.absolute()}/tables", "hadoop", "local[2]", "1g")

# %% [markdown]
# All current events, from the oldest one on. Each partition is read by its own task.

# %%
orders = nakadi_spark.read(spark, url, event_type)
orders.select("order_number", "total.amount").show()

# %% [markdown]
# New events, batch by batch, with the offsets in a folder. An unfinished batch is repeated with the same number, so
# writing each batch to a path with its number stores each event once.


# %%
def write(rows, batch):
    rows.write.mode("overwrite").parquet(str(folder / "orders" / f"batch={batch}"))


nakadi_spark.for_each_batch(spark, url, event_type, write, folder / "checkpoint")
written = spark.read.parquet(str(folder / "orders"))
written.groupBy("batch").count().show()
