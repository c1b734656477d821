"""The memory that requests share."""

import threading

import pytest

from nakadi.http import memory
from nakadi.http.memory import UNLIMITED_SHARE, RequestMemory
from nakadi.model.outcomes import TooLarge, TryLater


def test_shares_have_a_limit_together():
    """A share beyond the limit is refused for now, and is granted once another share is closed."""
    all_together = RequestMemory(100)
    one, other = all_together.open_share(), all_together.open_share()
    one.take(60)
    other.take(40)
    with pytest.raises(TryLater):
        other.take(1)

    one.close()
    other.take(60)

    assert (all_together.taken_bytes, other.taken) == (100, 100)


def test_a_share_beyond_the_limit_is_too_large():
    """A share that would not fit even into free memory is refused permanently."""
    share = RequestMemory(100).open_share()
    share.take(60)
    with pytest.raises(TooLarge):
        share.take(41)

    assert share.taken == 60


def test_a_closed_share_takes_nothing():
    """A closed share takes no more memory: a thread may continue after its request was given up, and nobody would
    return that memory.
    """
    all_together = RequestMemory(100)
    share = all_together.open_share()
    share.take(60)
    share.close()
    share.close()
    share.take(60)

    assert all_together.taken_bytes == 0


def test_nothing_is_lost_between_threads():
    """The shares of many threads add up, and end at zero."""
    all_together = RequestMemory(1_000_000)

    def work():
        for _ in range(200):
            share = all_together.open_share()
            for _ in range(5):
                share.take(3)
            share.close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all_together.taken_bytes == 0


def test_requests_that_no_one_counts_have_no_limit():
    """A request whose memory is not counted may take any amount, and none of it counts as taken."""
    UNLIMITED_SHARE.take(1 << 60)
    UNLIMITED_SHARE.close()

    assert UNLIMITED_SHARE.taken == 0


def test_the_allocator_is_told_where_the_system_can(monkeypatch):
    """The broker has the C library keep little free memory, and return the rest. A library that lacks the functions for
    this is left alone.
    """
    called = []

    def find_function(name):
        return lambda *arguments: called.append((name, *arguments))

    for find in (find_function, lambda _: None):
        monkeypatch.setattr(memory, "_find_c_function", find)
        memory.tune_allocator()
        memory.trim_memory()

    options = [("mallopt", *each) for each in memory.ALLOCATOR_OPTIONS.items()]
    assert called == [*options, ("malloc_trim", 0)]
