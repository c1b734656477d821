"""Lines of the archive, counted as far as their traffic goes. They are not parsed: that takes many times as long."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from nakadi.analytics.lines import EVENT
from nakadi.analytics.measuring import STEPS

PUBLISHER = '"published_by":"'

_MINUTE = 'substring(substring_index(head, \'"time":"\', -1), 1, 16)'

# The event without what is around it; a tombstone has none.
_SIZE = f"greatest(octet_length(value) - octet_length(head) - {len(EVENT) + 1}, 0)"


def sized(lines: DataFrame) -> DataFrame:
    """The minute and the size of lines whose heads are known."""
    return lines.withColumns({"minute": F.expr(_MINUTE), "size": F.expr(_SIZE)})


def between(lines: DataFrame, since: str, until: str) -> DataFrame:
    """Those of some minutes, both written as they are in lines."""
    return lines.where((F.col("minute") >= since) & (F.col("minute") < until))


def counted(lines: DataFrame, publisher: str) -> DataFrame:
    """Events and bytes by minute, partition, size and publisher."""
    step = F.floor(F.log(F.greatest(F.col("size"), F.lit(1))) * STEPS).cast("int")
    return (
        lines.select("minute", "partition", "size", F.expr(publisher).alias("publisher"), step.alias("step"))
        .groupBy("minute", "partition", "publisher", "step")
        .agg(F.count("*").alias("events"), F.sum("size").alias("bytes"), F.max("size").alias("largest"))
    )


NO_PUBLISHER = "cast(null as string)"
"""For events that the broker does not stamp."""

PUBLISHER_AT_ONCE = f"nullif(substring_index(substring_index(value, '{PUBLISHER}', -1), '\"', 1), '{{')"
"""What stands behind the name, wherever that stands."""

PUBLISHER_EXACTLY = "get_json_object(value, '$.event.metadata.published_by')"
"""The same where payloads may have such a name too."""


def ambiguous(lines: DataFrame, sample: int = 1000) -> bool:
    """Whether payloads have a name like the one that publishers stand behind."""
    twice = F.substring_index("value", PUBLISHER, 1) != F.expr(
        f"substring(value, 1, length(value) - length(substring_index(value, '{PUBLISHER}', -1)) - {len(PUBLISHER)})"
    )
    return not lines.limit(sample).where(F.col("value").contains(PUBLISHER) & twice).isEmpty()
