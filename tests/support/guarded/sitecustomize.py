"""Every Python process with this folder on its path imports this module when it starts. The module guards the event
loop of the process.

Calls that would block the loop raise there, and are noted in the file that `LOOP_GUARD_REPORT` names.
`LOOP_GUARD_FORGETS` names a module whose check of whether it may block is switched off.
"""

import os

if "LOOP_GUARD_REPORT" in os.environ:
    from tests.support.loop_guard import guard_this_process

    guard_this_process(os.environ["LOOP_GUARD_REPORT"], os.environ.get("LOOP_GUARD_FORGETS"))
