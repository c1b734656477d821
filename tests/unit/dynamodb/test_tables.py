"""The tables, and the models that are meant to fit them."""

from itertools import pairwise

from nakadi.dynamodb.tables import DOCUMENTS, TABLES
from nakadi.registries.dynamodb_items import DocumentItem


def test_documents_and_their_table_have_the_same_keys():
    """What the engine takes for keys are the keys that the deployment gives the table."""
    schema = DocumentItem._get_schema()
    keys = {each["AttributeName"]: each["KeyType"] for each in schema["key_schema"]}
    types = {each["AttributeName"]: each["AttributeType"] for each in schema["attribute_definitions"]}

    assert keys == {DOCUMENTS.partition_key[0]: "HASH", DOCUMENTS.sort_key[0]: "RANGE"}
    assert types == dict([DOCUMENTS.partition_key, DOCUMENTS.sort_key])


def test_tables_of_one_deployment_have_different_names():
    """Every table has a name of its own, which begins with the deployment's prefix."""
    names = sorted(table.name("live") for table in TABLES)

    assert all(name.startswith("live-") for name in names)
    assert all(first != second for first, second in pairwise(names))
