"""`nakadi`, and `python -m nakadi_cli`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code; docs/command-line.md says what each code means.

    Without `arguments`, it takes those of the process, and an interruption ends the process by the signal of Ctrl-C.
    """
    if arguments is not None:
        return _run(list(arguments))
    # Until the command begins, the signal itself ends the process, because a KeyboardInterrupt in the middle of an
    # import may turn into another exception. The handler is set even if a script has started this process in the
    # background, where processes ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = _run(None)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        # This also ends the timer that repeats the interruption.
        signal.setitimer(signal.ITIMER_REAL, 0)
        # End by the signal itself, which a shell also shows as 130: a loop in the shell would continue after any other
        # exit.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    return code


def _run(arguments: list[str] | None) -> int:
    try:
        import click
    except ImportError:
        sys.stderr.write("The command line needs more packages: pip install 'nakadi-serverless[cli]'\n")
        return 2

    from nakadi_cli.commands import interrupt
    from nakadi_cli.program import nakadi

    try:
        if arguments is None:
            signal.signal(signal.SIGINT, lambda *_: interrupt(KeyboardInterrupt))
        code = nakadi.main(args=arguments, prog_name="nakadi", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as failed:
        failed.show()
        return failed.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has stopped reading, as `head` does. Without this, Python would report the error
        # again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
