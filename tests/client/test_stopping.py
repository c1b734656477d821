"""SIGTERM is handled for consumers and producers, and never taken from an application."""

import signal
import threading

from nakadi_client import stopping


def test_a_handler_of_the_application_stays():
    """An application's own handler of SIGTERM stays."""

    def own_handler(_number, _frame):
        """Do nothing."""

    before = signal.signal(signal.SIGTERM, own_handler)
    try:
        withdraw = stopping.register(lambda: None)
        assert signal.getsignal(signal.SIGTERM) is own_handler
        assert not stopping.listen()
        withdraw()
        assert signal.getsignal(signal.SIGTERM) is own_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_stops_consumers_before_producers():
    """A signal first ends the consumers and then the program, whose end closes the producers."""
    stopped = threading.Event()
    closed = threading.Event()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    withdraw = [stopping.register(closed.set), stopping.register(stopped.set, is_consumer=True)]
    try:
        signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(30)
        assert not closed.is_set()
        # The next signal would end the process at once.
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for each in withdraw:
            each()
        signal.signal(signal.SIGTERM, before)


def test_nothing_is_left_behind():
    """When the last consumer or producer has ended, the signal has its earlier handler again."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        withdraw = stopping.register(lambda: None)
        assert stopping.listen()
        withdraw()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
