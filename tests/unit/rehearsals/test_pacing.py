"""Long work pauses to let other work run."""

from nakadi.rehearsals.pacing import MAX_SECONDS_AT_ONCE, Pacer


class SimulatedThread:
    """A thread whose CPU time the test moves; `pauses` has the pauses that it has made."""

    def __init__(self) -> None:
        self.computed = 0.0
        self.pauses: list[float] = []
        self.pacer = Pacer(self.pauses.append, lambda: self.computed)

    def compute(self, seconds: float) -> None:
        self.computed += seconds
        self.pacer.give_way()


def test_a_thread_pauses_for_as_long_as_it_computes():
    """Short pieces of work are added up until a pause is worthwhile, and no piece is left out."""
    thread = SimulatedThread()
    for _ in range(10):
        thread.compute(MAX_SECONDS_AT_ONCE / 4)
    thread.compute(1.0)

    assert len(thread.pauses) == 3
    assert abs(sum(thread.pauses) - thread.computed) < 1e-9
