from nakadi.caching import MOST_ENTRIES, Cache
from tests.support.clock import HandMovedClock


def test_a_value_is_read_once_while_it_is_fresh():
    """A value is read again when it is too old, and not before."""
    clock, reads = HandMovedClock(), []
    cache = Cache(clock, 1.0)

    for _ in range(3):
        cache.get("a", lambda: reads.append(1))
        clock.move(0.4)
    assert len(reads) == 1
    cache.get("a", lambda: reads.append(1))

    assert len(reads) == 2


def test_what_is_forgotten_is_read_again():
    """Forgetting makes the next look-up read."""
    cache = Cache(HandMovedClock(), 1.0)
    cache.get("a", lambda: 1)
    cache.forget("a")

    assert cache.get("a", lambda: 2) == 2


def test_a_read_that_met_a_change_is_not_remembered():
    """What was read before a change and arrived after it may be old; it is answered, and not kept."""
    cache = Cache(HandMovedClock(), 1.0)

    def read_and_meet_a_change():
        cache.forget("a")
        return "old"

    assert cache.get("a", read_and_meet_a_change) == "old"
    assert cache.get("a", lambda: "new") == "new"


def test_strangers_cannot_fill_the_memory():
    """However many keys are asked for, only so many are remembered."""
    cache = Cache(HandMovedClock(), 1.0)
    for number in range(MOST_ENTRIES + 5):
        cache.get(number, lambda: None)

    assert len(cache._entries) <= MOST_ENTRIES
