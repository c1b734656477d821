"""The deployed tables, and the models that have to match them."""

from itertools import pairwise

import pytest
from pynamodb.attributes import NumberAttribute

from nakadi.engines.dynamodb.coordination_table import CoordinationItem
from nakadi.engines.dynamodb.log_index import LogIndexItem
from nakadi.engines.dynamodb.registry import DocumentItem
from nakadi.engines.dynamodb.tables import COORDINATION_TABLE, DOCUMENTS_TABLE, LOG_INDEX_TABLE, TABLES


@pytest.mark.parametrize(
    ("table", "model"),
    [(DOCUMENTS_TABLE, DocumentItem), (LOG_INDEX_TABLE, LogIndexItem), (COORDINATION_TABLE, CoordinationItem)],
    ids=lambda each: getattr(each, "name_suffix", ""),
)
def test_a_model_and_its_table_have_the_same_keys(table, model):
    """The engine's model of a table has the keys of the deployed table; expiry times are numbers."""
    attributes = model.get_attributes().values()

    assert [(each.attr_name, each.attr_type) for each in attributes if each.is_hash_key] == [table.partition_key]
    assert [(each.attr_name, each.attr_type) for each in attributes if each.is_range_key] == [table.sort_key]
    assert table.expiry_attribute is None or isinstance(getattr(model, table.expiry_attribute), NumberAttribute)


def test_every_table_has_its_model():
    """Every deployed table is compared with a model in this module."""
    assert set(TABLES) == {DOCUMENTS_TABLE, LOG_INDEX_TABLE, COORDINATION_TABLE}


def test_tables_of_one_deployment_have_different_names():
    """Every table has its own name, which begins with the deployment's prefix."""
    names = sorted(table.full_name("live") for table in TABLES)

    assert all(name.startswith("live-") for name in names)
    assert all(first != second for first, second in pairwise(names))
