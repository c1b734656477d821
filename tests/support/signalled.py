"""Programs that get a signal at one step of their start.

A step is a call or a return of the main thread, counted from the first import of the program itself. So a moment is
the same one on a slow machine and on a fast one, and between two steps there is nothing to miss.

    python -m tests.support.signalled NUMBER STEP MODULE [ARGUMENT ...]

runs a module as `python -m` does, and lets the process send itself the signal with that number at that step. With step
0 it ends where it would print its first line, and tells the number of steps until there.
"""

import os
import random
import runpy
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ENVIRONMENT

ROOT = Path(__file__).parents[2]

PATIENCE = 180
SEED = 20240917


@dataclass(frozen=True)
class End:
    """How a process ended that got `how` at a step of its start."""

    step: int
    how: signal.Signals
    code: int
    said: str
    complained: str


def around_the_first_line(steps):
    """Anywhere before the first line, where all is loaded and files are opened, and where it prints that line."""
    return [(1, steps), (steps * 19 // 20, steps), (steps - 200, steps + 60)]


def ends_of_starts(module, *arguments, environment=None, stretches=around_the_first_line):
    """Start a program twice in each stretch, and let SIGTERM or SIGINT come at a step in it that a seed chooses."""
    # The second start counts: the first one may compile modules, which takes steps that no later start takes, and a
    # step that never comes would leave a program serving for ever.
    _finished(_process(0, 0, module, arguments, environment))
    steps = int(_finished(_process(0, 0, module, arguments, environment))[2])
    chance = random.Random(SEED)
    ends = []
    for stretch in stretches(steps):
        two = [(chance.randint(*stretch), how) for how in (signal.SIGTERM, signal.SIGINT)]
        processes = [_process(how, step, module, arguments, environment) for step, how in two]
        ends += [End(step, how, *_finished(each)) for (step, how), each in zip(two, processes, strict=True)]
    return ends


def _process(how, step, module, arguments, environment):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.support.signalled", str(int(how)), str(step), module, *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finished(process):
    try:
        said, complained = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, said, complained


class _Steps:
    def __init__(self, how, at):
        self._how = how
        self._at = at
        self.done = 0

    def count(self, *_):
        self.done += 1
        if self.done == self._at:
            os.kill(os.getpid(), self._how)


def _main(how, at, module, *arguments):
    steps = _Steps(int(how), int(at))
    program = f"{module}.program"

    def begin(event, about):
        if event == "import" and about[0] == program:
            sys.setprofile(steps.count)

    class FirstLine:
        def write(self, _):
            sys.__stderr__.write(str(steps.done))
            sys.__stderr__.flush()
            os._exit(0)

    if steps._at == 0:
        sys.stdout = FirstLine()
    sys.argv = [module, *arguments]
    sys.addaudithook(begin)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
