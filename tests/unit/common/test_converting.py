"""Types are prepared before there are threads: if two threads prepare the same type at the same time, the process
crashes."""

import re
import subprocess
import sys
from pathlib import Path

import nakadi
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT_ENVIRONMENT

PACKAGE = Path(nakadi.__file__).parent

# The first thread that reads a document examines the types of its fields, which takes long enough for other threads to
# begin reading, too.
READ_BY_THREADS = """
import threading, time
from msgspec import _utils
from tests.contracts.test_stored_documents import BROUGHT_BACK

evaluate = _utils._eval_type

def evaluate_slowly(*arguments):
    time.sleep(0.001)
    return evaluate(*arguments)

_utils._eval_type = evaluate_slowly
read = []

def bring_back(number, stored, read_and_written):
    time.sleep(number * 0.01)
    read.append(read_and_written(stored))

for each in BROUGHT_BACK.values():
    threads = [threading.Thread(target=bring_back, args=(number, *each)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(read) / 6 / len(BROUGHT_BACK))
"""


def test_threads_may_read_the_first_document_at_the_same_time():
    """Threads may read the first document at the same time. Without preparation, the process would crash, as a
    worker once did that restarted while publishers waited.
    """
    command = [sys.executable, "-c", READ_BY_THREADS]
    done = subprocess.run(command, check=False, env=ROOT_ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "1.0", "")


def test_nothing_else_converts_to_types_that_threads_share():
    """No other code prepares types that threads share: a type made from a schema belongs to one thread until it is
    ready, and decoders are made at import.
    """
    converting = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if re.search(r"\bconvert\(|decode\([^)]*type=|^ .*\bDecoder\(", file.read_text(), re.MULTILINE)
    }
    assert converting == {
        "common/converting.py",
        "schemas/batch_check.py",
        "schemas/projection.py",
        "schemas/text_check.py",
    }
