"""The descriptions of columns and tables, which come from the schema of the event type."""

import json

from nakadi.model.event_type import SchemaType
from nakadi.schemas.avro.json_schema import json_schema_of
from nakadi_jobs.columns import derive_columns, parse_schema, whole_event_schema
from nakadi_jobs.data_files import column_comments
from nakadi_jobs.descriptions import MAX_CHARACTERS, column_descriptions, schema_description
from nakadi_jobs.event_type_tables import all_tables
from tests.support.builders import an_event_type

SCHEMA = {
    "description": "An order\n  of a customer",
    "definitions": {"money": {"type": "object", "description": "Money", "properties": {"amount": {"type": "number"}}}},
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": 'The customer\'s "number"'},
        "plain": {"type": "string"},
        "total": {"$ref": "#/definitions/money"},
        "net": {"allOf": [{"$ref": "#/definitions/money"}], "description": "Without taxes"},
        "items": {
            "type": "array",
            "description": "What was ordered",
            "items": {"type": "object", "properties": {"sku": {"type": "string", "description": "The article"}}},
        },
        "strange": {"type": "integer", "description": {"de": "seltsam"}},
        "long": {"type": "integer", "description": "x" * 2000},
    },
}


def test_descriptions_are_found_wherever_the_schema_has_them():
    """Descriptions are found beside references and at their targets, in parts, in objects and in lists; a property
    without a description has an empty one. (T9)
    """
    columns = derive_columns(an_event_type(), [SCHEMA])
    assert column_descriptions(columns, SCHEMA) == {
        "id": 'The customer\'s "number"',
        "plain": "",
        "total": "Money",
        "total.amount": "",
        "net": "Without taxes",
        "net.amount": "",
        "items": "What was ordered",
        "items.element": "",
        "items.element.sku": "The article",
        "strange": "",
        "long": "x" * MAX_CHARACTERS,
    }
    assert schema_description(SCHEMA) == "An order of a customer"
    assert schema_description({"title": "Orders"}) == "Orders"


def test_avro_schemas_have_descriptions_too():
    """The description of a record or a field in an Avro schema is its `doc`, if that is a string. (T9)"""
    money = {"type": "record", "name": "Money", "doc": "Money", "fields": [{"name": "amount", "type": "long"}]}
    fields = [
        {"name": "id", "type": "string", "doc": "The number"},
        {"name": "total", "type": ["null", money], "doc": "With taxes"},
        {"name": "net", "type": "Money"},
        {"name": "strange", "type": "int", "doc": 1},
    ]
    text = json.dumps({"type": "record", "name": "Order", "doc": "An order", "fields": fields})
    event_type, schema = an_event_type(), parse_schema(SchemaType.AVRO, text)
    columns = derive_columns(event_type, [schema])
    found = column_descriptions(columns, whole_event_schema(event_type, schema))
    assert {name: each for name, each in found.items() if not name.startswith("metadata")} == {
        "id": "The number",
        "total": "With taxes",
        "total.amount": "",
        "net": "Money",
        "net.amount": "",
        "strange": "",
    }
    assert schema_description(json_schema_of(schema)) == "An order"


def test_a_column_of_another_type_has_the_description_of_its_property():
    """A further column of a property has the property's description. Columns of properties that the newest schema does
    not have are left out, so their comments in tables stay. (T9)
    """
    old = {"properties": {"total": {"type": "string"}, "gone": {"type": "string", "description": "was there"}}}
    new = {"properties": {"total": {"type": "number", "description": "How much"}}}
    columns = derive_columns(an_event_type(), [old, new])
    assert column_descriptions(columns, new) == {"total": "How much", "total__double": "How much"}


def test_a_schema_that_refers_to_itself_ends():
    """The descriptions end where the columns end, although the schema refers to itself. (T9)"""
    schema = {
        "properties": {"node": {"$ref": "#/definitions/node"}},
        "definitions": {"node": {"description": "A node", "properties": {"next": {"$ref": "#/definitions/node"}}}},
    }
    columns = derive_columns(an_event_type(), [schema])
    assert column_descriptions(columns, schema)["node"] == "A node"


def test_tables_say_what_their_columns_mean(jobs, data):
    """Both tables of an event type have comments on their columns and on the table, the owner and the personal data,
    which follow the schema and the annotations. (T9)
    """
    orders = data.event_type(
        "order.placed",
        SCHEMA,
        owning_application="it's mine",
        annotations={"nakadi.io/personal-data": "id, customer.email"},
    )
    data.archive_events(orders, [{"id": "c", "items": [{"sku": "s"}]}])
    jobs.compact()

    comments, properties = read_descriptions(jobs)
    assert comments["nakadi_partition"] == "the partition"
    assert (comments["id"], comments["items.element.sku"], comments["plain"]) == (
        'The customer\'s "number"',
        "The article",
        "",
    )
    assert properties == ("An order of a customer", "it's mine", "customer.email, id")

    changed = json.loads(json.dumps(SCHEMA))
    del changed["description"], changed["properties"]["id"]["description"]
    changed["properties"]["items"]["items"]["properties"]["sku"]["description"] = "Its article"
    orders = data.annotate(data.new_schema("order.placed", changed), {})
    data.archive_events(orders, [{"id": "d"}])
    jobs.compact()

    comments, properties = read_descriptions(jobs)
    assert (comments["id"], comments["items.element.sku"]) == ("", "Its article")
    assert properties == ("Events of the type order.placed", "it's mine", None)


def read_descriptions(jobs):
    spark = jobs.spark()
    [table] = all_tables(spark, jobs.database)
    found = table.properties()
    names = ("comment", "nakadi.owning-application", "nakadi.personal-data")
    return column_comments(table._java(), spark._jvm), tuple(found.get(name) for name in names)
