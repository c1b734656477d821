"""Sends programs a signal at one step of their start.

A step is a call or a return in the main thread, counted from when the program's own module is first imported. So a step
is the same moment on slow and on fast machines, and no moment lies between two steps.

    python -m tests.support.signalled NUMBER STEP MORE MODULE [ARGUMENT ...]

runs a module as `python -m` does, and lets the process send itself the signal NUMBER at STEP, or MORE steps after it
says that it serves, if that comes first, because an idle program takes no steps. With step 0, the process ends when it
would print its first line, and prints the number of steps so far.
"""

import os
import random
import runpy
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ENVIRONMENT, run_process

ROOT = Path(__file__).parents[2]

PATIENCE = 180
SEED = 20240917
READY_TEXTS = ("Streaming on port ", "Ctrl-C ends it.")
EXTRA_STEPS = 60
"""A server takes at least this number of steps after it says that it serves, without waiting for anything."""


@dataclass(frozen=True)
class SignalledEnd:
    """How a process ended that got the signal `how` at a step of its start."""

    step: int
    how: signal.Signals
    code: int
    said: str
    complained: str


def default_stretches(steps):
    """Three ranges of steps: all before the first line is printed, those that open files, and those around that
    line.
    """
    return [(1, steps), (steps * 19 // 20, steps), (steps - 200, steps + EXTRA_STEPS)]


def end_at_each_step(module, *arguments, environment=None, stretches=default_stretches, more=EXTRA_STEPS):
    """For each stretch, start a program twice, and send it SIGTERM the first time and SIGINT the second, each at a
    random step of the stretch.
    """
    # The first start compiles modules and creates files, so it takes more steps; the second start is measured.
    _, steps = [_end(0, 0, more, module, arguments, environment) for _ in range(2)]
    chance = random.Random(SEED)
    ends = []
    with ThreadPoolExecutor(2) as both:
        for stretch in stretches(int(steps.complained)):
            two = [(chance.randint(*stretch), how) for how in (signal.SIGTERM, signal.SIGINT)]
            ends += both.map(lambda each: _end(each[1], each[0], more, module, arguments, environment), two)
    return ends


def _end(how, step, more, module, arguments, environment):
    numbers = [str(int(each)) for each in (how, step, more)]
    command = [sys.executable, "-W", "error", "-m", "tests.support.signalled", *numbers, module, *arguments]
    with run_process(command, {**ENVIRONMENT, **(environment or {})}, ROOT) as process:
        said, complained = process.communicate(timeout=PATIENCE)
        return SignalledEnd(step, how, process.returncode, said, complained)


class _Steps:
    def __init__(self, how, at, more):
        self._how = how
        self._at = at
        self._more = more
        self.done = 0

    def count(self, *_):
        self.done += 1
        if self.done == self._at:
            os.kill(os.getpid(), self._how)

    def serving(self):
        self._at = min(self._at, self.done + self._more)


def _main(how, at, more, module, *arguments):
    steps = _Steps(int(how), int(at), int(more))
    program = f"{module}.program"

    def begin(event, about):
        if event == "import" and about[0] == program:
            sys.setprofile(steps.count)

    class Output:
        def write(self, text):
            if int(at) == 0:
                sys.__stderr__.write(str(steps.done))
                sys.__stderr__.flush()
                os._exit(0)
            if any(each in text for each in READY_TEXTS):
                steps.serving()
            return sys.__stdout__.write(text)

        def __getattr__(self, name):
            return getattr(sys.__stdout__, name)

    sys.stdout = Output()
    sys.argv = [module, *arguments]
    sys.addaudithook(begin)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
