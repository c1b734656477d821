"""Tasks can be run to their end in two ways: by a thread that waits, or by threads that call back."""

import threading
from concurrent.futures import Future

import pytest

from nakadi.common.waiting import LEAVE_LOOP, Callback, CallThreads, ThreadCall, begin_task, run_blocking
from tests.support.patience import PATIENCE


class Trouble(Exception):
    pass


@pytest.fixture
def threads():
    threads = CallThreads("called")
    yield threads
    threads.close()


def call_from_thread(outcome):
    """Work that another thread completes with this outcome."""
    return Callback(lambda done: threading.Thread(target=done, args=(outcome,)).start())


def thread_name():
    return threading.current_thread().name.rpartition("_")[0]


def raise_trouble(*_):
    raise Trouble


def run_begun(awaiting_task):
    outcome = Future()
    begin_task(awaiting_task, outcome.set_result)
    return outcome.result(PATIENCE)


@pytest.mark.parametrize("run", [run_blocking, run_begun])
def test_a_task_goes_on_with_what_it_has_waited_for(threads, run):
    async def inner():
        return await call_from_thread(2) + await ThreadCall(threads, lambda: 3)

    async def outer():
        await LEAVE_LOOP
        return await inner() * await inner()

    assert run(outer()) == 25


@pytest.mark.parametrize("run", [run_blocking, run_begun])
def test_what_fails_raises_where_it_is_awaited(threads, run):
    async def awaiting_task():
        seen = []
        for wait in (call_from_thread(Trouble("a")), Callback(raise_trouble), ThreadCall(threads, raise_trouble)):
            try:
                await wait
            except Trouble as error:
                seen.append(str(error))
        return seen

    assert run(awaiting_task()) == ["a", "", ""]


def test_what_a_task_raises_is_its_outcome(threads):
    async def awaiting_task():
        await ThreadCall(threads, raise_trouble)

    with pytest.raises(Trouble):
        run_blocking(awaiting_task())
    assert isinstance(run_begun(awaiting_task()), Trouble)


def test_only_who_does_not_wait_needs_a_thread(threads):
    """Only a caller that does not wait needs a thread; a Lambda function waits, so it makes its calls itself."""

    async def awaiting_task():
        return await ThreadCall(threads, thread_name)

    assert run_blocking(awaiting_task()) == thread_name()
    assert run_begun(awaiting_task()) == "called"


def test_a_begun_task_has_returned_before_its_end():
    held, ended = [], []

    async def awaiting_task():
        return await Callback(held.append)

    begin_task(awaiting_task(), ended.append)
    assert ended == []
    held[0]("stored")
    assert ended == ["stored"]


def test_threads_that_are_closed_leave_work_to_the_caller(threads):
    """After the threads are closed, the caller's own thread does the work."""
    threads.close()
    ended = []
    ThreadCall(threads, thread_name).begin(ended.append)
    assert ended == [thread_name()]
