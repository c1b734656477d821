"""The examples of docs/spark.md work, one after the other, on a broker."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO

import httpx
import pytest

from nakadi.local import Broker
from nakadi_client import read
from tests.support.jobs import open_reading_session
from tests.support.pages import ROOT
from tests.support.patience import PATIENCE
from tests.support.spark import quick_spark

__all__ = ["quick_spark"]  # the fixture for all tests of this module

PAGE = (ROOT / "docs" / "spark.md").read_text()
EXAMPLES = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "# Spark 4" not in each]


@pytest.fixture(scope="module")
def url():
    with Broker() as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as api:
        placed = json.loads((ROOT / "events/event_types/order.placed.json").read_text())
        batch = json.loads((ROOT / "events/batches/order.placed/three-orders.json").read_text())
        for name in ("order.placed", "order.paid"):
            assert api.post("/event-types", json=placed | {"name": name}).status_code == 201
            assert api.post(f"/event-types/{name}/events", json=batch).status_code == 200
        counts = {"properties": {"country": {"type": "string"}, "count": {"type": "integer"}}}
        schema = {"type": "json_schema", "schema": json.dumps(counts)}
        counted = placed | {"name": "country.counted", "schema": schema, "partition_key_fields": ["country"]}
        assert api.post("/event-types", json=counted).status_code == 201
        yield broker.url


def test_the_examples_work(url, tmp_path):
    """The examples on the page run unchanged, except for the locations of the broker and of files. (K1, K4, K5, K7,
    K11)
    """
    spark = open_reading_session(f"file://{tmp_path}/tables")
    names = {"spark": spark}
    with redirect_stdout(StringIO()) as shown:
        for example in EXAMPLES:
            text = example.replace("http://localhost:8080", url)
            for place in ("recent-orders", "orders/batch", "checkpoint"):
                text = text.replace(f'"{place}', f'"{tmp_path}/{place}')
            exec(compile(text, "docs/spark.md", "exec"), names)
    assert "order.paid" in shown.getvalue()
    [batch] = read(url, "country.counted", start="begin", follow=False)
    assert [(event["country"], event["count"]) for event in batch.events] == [("DK", 3)]
    assert spark.read.parquet(f"{tmp_path}/recent-orders").count() == 3
    assert spark.read.parquet(f"{tmp_path}/orders").count() == 3
