"""The known damage in an archive."""

from nakadi.engines.archive.damage import FORGET_AFTER_SECONDS, MAX_DAMAGED_PARTS, ArchiveDamage
from nakadi.engines.archive.policy import EmptyTopicCatalog
from nakadi.model.log_index import ArchiveLocation, IndexingState, IndexSegment
from tests.support.clock import HandMovedClock


def a_segment(number):
    return IndexSegment(
        state_before=IndexingState(next_offset=10 * number),
        offset_count=10,
        first_stored_at=0,
        last_stored_at=0,
        location=ArchiveLocation(f"object {number}", 0, 10),
        event_count=10,
    )


def test_a_part_is_known_until_it_can_be_read():
    """A query checks the damaged parts again: a repaired part is missing from the next answer."""
    checked = []
    damage = ArchiveDamage(EmptyTopicCatalog(), checked.append)
    damage.add("t", 3, a_segment(1))

    assert damage.rows() == {("t", "3", "10-19", "object 1"): 10}
    assert [each.segment for each in checked] == [a_segment(1)]
    damage.remove(checked[0].segment.location)
    assert damage.rows() == {}


def test_a_part_that_nobody_reads_is_forgotten():
    """A damaged part that nobody has read for a while is forgotten, because retention may have removed it."""
    clock = HandMovedClock()
    damage = ArchiveDamage(EmptyTopicCatalog(), lambda _: None, clock.monotonic)
    damage.add("t", 0, a_segment(1))
    clock.move(FORGET_AFTER_SECONDS + 1)

    assert damage.rows() == {}


def test_only_the_latest_parts_are_kept():
    """The list of damaged parts has a limit, because a lost archive has as many damaged parts as it had segments."""
    damage = ArchiveDamage(EmptyTopicCatalog(), lambda _: None)
    for number in range(MAX_DAMAGED_PARTS + 5):
        damage.add("t", 0, a_segment(number))

    assert len(damage.rows()) == MAX_DAMAGED_PARTS
