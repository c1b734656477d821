"""Proves that the simulation can fail: `python -m tests.simulation.mutants [SEEDS]` introduces one fault at a time
into a copy of the code, and looks for a seed whose world shows the fault.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nakadi
from tests.support.environment import plain_environment

PACKAGE = Path(nakadi.__file__).parent
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """A fault: `becomes` replaces `was` in a file of the package, which breaks the promise `breaks`."""

    breaks: str
    what: str
    file: str
    was: str
    becomes: str


MUTANTS = (
    Mutant(
        "progress",
        "a session continues although its subscription was deleted",
        "subscriptions/stream/session.py",
        "            return self._end_now(SessionEnd.REMOVED)\n",
        "            return []\n",
    ),
    Mutant(
        "I1",
        "events of a partition are sent during its hand-over",
        "subscriptions/stream/partition_progress.py",
        "return self.state is PartitionState.READING",
        "return self.is_open and not self._parking and self.dropping is None",
    ),
    Mutant(
        "I1",
        "a value that was read before a hand-over is used after it",
        "subscriptions/stream/session.py",
        "if shared.assignment.revision < self._revision:",
        "if False:",
    ),
    Mutant(
        "I1",
        "events of a partition are sent at once when it returns during a hand-over",
        "subscriptions/stream/partition_states.py",
        "**{(state.HANDING_OVER, each): (state.HANDING_OVER,) for each in (fact.WANTED, fact.UNWANTED)},",
        "(state.HANDING_OVER, fact.WANTED): (state.DRAINING,), (state.HANDING_OVER, fact.UNWANTED): AT_WORK,",
    ),
    Mutant(
        "progress",
        "a partition that was handed over cannot return while another session waits for it",
        "subscriptions/stream/partition_states.py",
        "for each in (*AT_WORK, state.DRAINING, state.RELEASED)},",
        "for each in (*AT_WORK, state.DRAINING)},",
    ),
    Mutant(
        "I2",
        "a rebalance takes partitions from live owners",
        "subscriptions/api/assignments.py",
        "    return replace(entry, next_owner=session)\n",
        "    return replace(entry, owner=session, next_owner=None)\n",
    ),
    Mutant(
        "I3",
        "a stream begins while offsets are being set",
        "subscriptions/api/assignments.py",
        "    if is_being_reset(assignment, now):\n",
        "    if False:\n",
    ),
    Mutant(
        "I3",
        "offsets are set while there are sessions",
        "subscriptions/api/offsets.py",
        "reset.task is None or found.sessions:",
        "reset.task is None:",
    ),
    Mutant(
        "I3",
        "a commit can move an offset backwards",
        "engines/common/assignments.py",
        "return CommitResult.COMMITTED if position > offset.position else CommitResult.OUTDATED",
        "return CommitResult.COMMITTED",
    ),
    Mutant(
        "I4",
        "offsets are read before the assignment",
        "subscriptions/stream/members.py",
        "    assignment = known.assignment if known is not None else members.assignment()\n",
        "    offsets = members.coordination.committed_offsets(members.subscription_id)\n"
        "    assignment = known.assignment if known is not None else members.assignment()\n"
        "    if True:\n        return SharedState(assignment, offsets, False)\n",
    ),
    Mutant(
        "I5",
        "a partition is released while its events are outstanding",
        "subscriptions/stream/partition_progress.py",
        "return not self.uncommitted and not self._parking and self.dropping is None",
        "return not self._parking and self.dropping is None",
    ),
    Mutant(
        "hand-over",
        "commits delay the end of a closing session",
        "subscriptions/stream/session.py",
        "or now >= self._closed_by:",
        "or now >= self._schedule.commit_by:",
    ),
    Mutant(
        "hand-over",
        "a session does not watch how long another session waits",
        "subscriptions/stream/session.py",
        "if any(each.release_by is not None and now >= each.release_by for each in self._partitions.values()):",
        "if False:",
    ),
    Mutant(
        "time to commit",
        "a session closes for others before its client's commit timeout ends",
        "subscriptions/stream/session.py",
        "partition.note_waiting_session(now + self._limits.commit_seconds)",
        "partition.note_waiting_session(now + 0.9 * self._limits.commit_seconds)",
    ),
    Mutant(
        "progress",
        "commits hide an unreported change",
        "subscriptions/stream/members.py",
        "and self._is_recent() else None",
        "else None",
    ),
    Mutant(
        "I6",
        "the broker admits one session too many",
        "subscriptions/api/assignments.py",
        "if sharing >= total - len(claimed):",
        "if sharing > total - len(claimed):",
    ),
    Mutant(
        "I6",
        "a partition is claimed twice",
        "subscriptions/api/assignments.py",
        "    if taken:\n",
        "    if False:\n",
    ),
    Mutant(
        "I7",
        "a session continues without a lease",
        "subscriptions/stream/session.py",
        "now >= self._context.lease.valid_until",
        "False",
    ),
    Mutant(
        "I7",
        "a late renewal of a lease counts",
        "subscriptions/stream/leases.py",
        "if lease.is_valid(self._clock.monotonic()):",
        "if True:",
    ),
    Mutant(
        "I7",
        "a process is considered dead too early",
        "subscriptions/api/lease_watch.py",
        "CLOCK_MARGIN = timedelta(seconds=2)",
        "CLOCK_MARGIN = timedelta(seconds=-2)",
    ),
    Mutant(
        "progress",
        "a lease counts for as long as it claims",
        "subscriptions/api/lease_watch.py",
        "        if now >= self.unchanged_since + _SECONDS_UNTIL_LEASE_EXPIRES:\n            return False\n",
        "",
    ),
    Mutant(
        "progress",
        "a marker with a future time keeps streams away",
        "subscriptions/api/assignments.py",
        "        and (reset.began_at is None or reset.began_at <= now + CLOCK_MARGIN)\n",
        "",
    ),
    Mutant(
        "I8",
        "a session does not notice that it has joined if the answer was lost",
        "subscriptions/stream/members.py",
        "            if assignment.session(session.id) is not None:\n                return assignment\n",
        "",
    ),
    Mutant(
        "I8",
        "initialising a subscription a second time resets its offsets",
        "subscriptions/api/offsets.py",
        "    missing = sorted((partition for partition in positions if partition not in there), "
        "key=_by_event_type_and_number)\n",
        "    assignment, missing = replace(assignment, entries=()), sorted(positions, key=_by_event_type_and_number)\n",
    ),
    Mutant(
        "at least once",
        "skipped events are committed before sent ones",
        "subscriptions/stream/partition_progress.py",
        "if after > reached or (",
        "if (",
    ),
    Mutant(
        "once committed",
        "a commit beyond the events read drops nothing",
        "subscriptions/stream/session.py",
        "if (stored > partition.taken or",
        "if (False or",
    ),
    Mutant(
        "once committed",
        "an outdated opening counts",
        "subscriptions/stream/session.py",
        "return partition.opening_number == opening.opening_number",
        "return True",
    ),
    Mutant(
        "order",
        "events for other clients end a batch early",
        "subscriptions/stream/partition_progress.py",
        "            self.taken = part.end\n",
        "            self.taken = part.end\n"
        "            if disposition is EventDisposition.SKIP:\n                break\n",
    ),
    Mutant(
        "at least once",
        "events are sent before the events that follow a parked one are parked",
        "subscriptions/stream/partition_states.py",
        "(state.PARKING,) for each in (state.READING, state.PARKING)},",
        "(each,) for each in (state.READING, state.PARKING)},",
    ),
    Mutant(
        "parking",
        "a new stream does not read the parked keys",
        "subscriptions/stream/calls.py",
        "        parked = self._parking.parked_keys(opening.partition, opening.replay)\n",
        "        parked = frozenset[str]()\n",
    ),
    Mutant(
        "leaving",
        "a session continues although its client leaves",
        "subscriptions/stream/session.py",
        "        if own.is_leaving:\n",
        "        if False:\n",
    ),
    Mutant(
        "release",
        "a session waits for commits after its connection ends although its client chose release",
        "subscriptions/stream/session.py",
        "        if self._limits.releases_on_disconnect:\n",
        "        if False:\n",
    ),
    Mutant(
        "extension",
        "an extension promises more time than a closing stream has",
        "subscriptions/stream/session.py",
        "self._schedule.commit_by if self._is_streaming else self._closed_by)",
        "self._schedule.commit_by)",
    ),
    Mutant(
        "progress",
        "no process removes dead sessions",
        "subscriptions/stream/leases.py",
        "            if dead:\n                name =",
        "            if False:\n                name =",
    ),
    Mutant(
        "progress",
        "a session that could not leave is forgotten",
        "subscriptions/stream/leases.py",
        "        self._unremoved.add((subscription_id, session_id))\n",
        "        return\n",
    ),
)


def apply_mutation(mutant: Mutant) -> str:
    """The text of the mutant's file with the fault."""
    text = (PACKAGE / mutant.file).read_text()
    assert text.count(mutant.was) == 1, f"{mutant.what}: the code has changed"
    return text.replace(mutant.was, mutant.becomes)


def find_symptom(mutant: Mutant, seeds: int) -> str:
    """Search for a world that shows the fault of a mutant, and describe the result in one line."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "nakadi"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(apply_mutation(mutant))
        environment = plain_environment(PYTHONPATH=f"{folder}:{ROOT}")
        command = [sys.executable, "-m", "tests.simulation", "--first-only", str(seeds)]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
        return lines[0][:110] if lines else "NOT FOUND"


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    missed = 0
    for mutant in MUTANTS:
        outcome = find_symptom(mutant, count)
        missed += outcome == "NOT FOUND"
        print(f"{mutant.breaks:14} {mutant.what:76} {outcome}", flush=True)
    sys.exit(1 if missed else 0)
