"""The effects of SIGTERM and Ctrl-C on a program."""

import os
import signal

import pytest

from nakadi.app.shutdown import SignalHandler


class ProcessExit(BaseException):
    """Raised in place of the immediate end of the process, with the exit code."""


@pytest.fixture
def steps_taken():
    """The steps of the program so far, in order."""
    return []


@pytest.fixture
def signals(monkeypatch, steps_taken):
    """Install a program's signal handlers; the earlier ones are restored after the test."""

    def end(code):
        raise ProcessExit(code)

    monkeypatch.setattr(os, "_exit", end)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signals = SignalHandler(before_a_sudden_end=lambda: steps_taken.append("cleaned up"))
    signals.install()
    yield signals
    for each, handler in before.items():
        signal.signal(each, handler)


def code_of(number):
    """The exit code with which a signal ends the process immediately."""
    with pytest.raises(ProcessExit) as end:
        signal.raise_signal(number)
    return end.value.args[0]


@pytest.mark.usefixtures("signals")
def test_a_program_that_starts_ends_at_once(steps_taken):
    """Before a program serves, SIGTERM ends it with exit code 0, and Ctrl-C with 130, and its resources are cleaned
    up."""
    assert (code_of(signal.SIGTERM), code_of(signal.SIGINT)) == (0, 130)
    assert steps_taken == ["cleaned up"] * 2


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_serves_is_asked_once(signals, steps_taken, first):
    """The first signal begins an orderly end. Another SIGTERM changes nothing; another Ctrl-C ends the program
    immediately, even when it no longer serves."""
    with signals.stopping_on_signal(lambda: steps_taken.append("asked")):
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGTERM)
        assert steps_taken == ["asked"]
        assert code_of(signal.SIGINT) == 130

    signal.raise_signal(signal.SIGTERM)
    assert code_of(signal.SIGINT) == 130
    assert steps_taken == ["asked", "cleaned up", "cleaned up"]


def test_a_program_that_serves_no_more_ends_at_once(signals):
    """A first signal after serving has failed ends the program like a signal before serving."""
    with signals.stopping_on_signal(lambda: None):
        pass

    assert (code_of(signal.SIGTERM), code_of(signal.SIGINT)) == (0, 130)
