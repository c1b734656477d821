"""Measures the memory that work takes, in a process where nothing else runs."""

import gc
import os
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from typing import NamedTuple


class TracedMemory(NamedTuple):
    """Bytes that Python allocated: those that the result keeps, and the peak during the work."""

    kept: int
    peak: int


def trace_memory(work: Callable[[], object]) -> TracedMemory:
    """Do the work in a copy of this process, and return the memory that it takes.

    `tracemalloc` counts what all threads allocate. Earlier tests may have left threads behind, such as a broker's or an
    emulator's. A copy of the process has none of them.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of locks in other threads
        process = os.fork()
    if not process:
        _write_memory_and_exit(work, writer)
    os.close(writer)
    with os.fdopen(reader) as figures:
        text = figures.read()
    os.waitpid(process, 0)
    kept, peak = text.split()  # if this line fails, the work has failed: its traceback is on standard error
    return TracedMemory(int(kept), int(peak))


def _write_memory_and_exit(work: Callable[[], object], writer: int) -> None:
    try:
        gc.disable()  # finalizers of earlier tests' objects belong to the process that was copied
        tracemalloc.start()
        result = work()
        os.write(writer, b"%d %d" % tracemalloc.get_traced_memory())
        del result
    except BaseException:  # noqa: BLE001  # nothing above this may go on in the copy
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(0)
