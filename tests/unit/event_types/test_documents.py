from datetime import timedelta

from nakadi.event_types.documents import event_type_body, event_type_from_document
from nakadi.model.authorization import Attribute, Authorization
from nakadi.model.event_type import (
    Audience,
    Category,
    CleanupPolicy,
    CompatibilityMode,
    EnrichmentStrategy,
    OwnerSelector,
    OwnerSelectorType,
    PartitionStrategy,
    Statistics,
    Version,
)
from nakadi.ports.registry import Document
from tests.support.builders import A_MOMENT, a_schema, a_timeline, an_event_type

A_LATER_MOMENT = A_MOMENT + timedelta(milliseconds=1)


def store_and_read(event_type):
    return event_type_from_document(Document(event_type.name, event_type_body(event_type), event_type.revision))


def test_an_event_type_without_optional_fields_is_stored_completely():
    """An event type without optional fields is read from the registry as it was stored."""
    event_type = an_event_type()

    assert store_and_read(event_type) == event_type


def test_an_event_type_with_all_fields_is_stored_completely():
    """No field of an event type is lost or changed when it is stored."""
    event_type = an_event_type(
        category=Category.DATA,
        schema=a_schema('{"é": 1}', version=Version(1, 2, 3), created_at=A_LATER_MOMENT),
        enrichment_strategies=(EnrichmentStrategy.METADATA,),
        partition_strategy=PartitionStrategy.HASH,
        partition_key_fields=("a", "b"),
        ordering_key_fields=("c",),
        ordering_instance_ids=("d",),
        cleanup_policy=CleanupPolicy.COMPACT_AND_DELETE,
        compatibility_mode=CompatibilityMode.NONE,
        default_statistic=Statistics(messages_per_minute=1, message_size=2, read_parallelism=3, write_parallelism=4),
        authorization=Authorization(
            admins=(Attribute("a", "1"),), readers=(Attribute("b", "2"),), writers=(Attribute("c", "3"),)
        ),
        audience=Audience.EXTERNAL_PUBLIC,
        event_owner_selector=OwnerSelector(type=OwnerSelectorType.PATH, name="n", value="v"),
        annotations={"a": "1", "b": None},
        labels={"c": "2"},
        timelines=(
            a_timeline(cleaned_up_at=A_LATER_MOMENT, latest_positions={0: 7, 1: -1}, deleted=True),
            a_timeline(order=2),
        ),
        switching_to=a_timeline(order=3, switched_at=None),
    )

    assert store_and_read(event_type) == event_type
