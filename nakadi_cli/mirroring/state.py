"""The progress of a mirror, in a file that only one mirror uses at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nakadi_cli.failures import BadInput, Conflict

FORMAT = 1


@dataclass
class Progress:
    """The progress of an event type: the offset of the source after which each partition continues."""

    offsets: dict[str, str] = field(default_factory=dict)
    copied: int = 0


@dataclass
class State:
    """The progress of a mirror. `source` and `target` are the URLs of its brokers."""

    file: Path
    source: str
    target: str
    event_types: dict[str, Progress] = field(default_factory=dict)

    def progress_of(self, event_type: str) -> Progress:
        return self.event_types.setdefault(event_type, Progress())

    def save(self) -> None:
        """Replace the file in one step: a kill leaves the old state or the new one."""
        document = {"format": FORMAT, "source": self.source, "target": self.target}
        types = {name: asdict(progress) for name, progress in self.event_types.items()}
        draft = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        draft.write_text(json.dumps({**document, "event_types": types}, indent=1))
        draft.replace(self.file)


@contextmanager
def open_state(file: Path, source: str, target: str) -> Iterator[State]:
    """Load the state of a mirror, and lock it against other mirrors; a new state begins with nothing copied."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(f"{file.name}.lock").open("w")
    except OSError as error:
        raise BadInput(f"The state {file} cannot be kept: {error.strerror}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Another mirror uses {file}: stop it first.") from None
        yield _load(file, source, target)


def _load(file: Path, source: str, target: str) -> State:
    state = State(file, source, target)
    if not file.exists():
        return state
    try:
        document = json.loads(file.read_text())
        known = document["format"], document["source"], document["target"]
        state.event_types = {name: Progress(**each) for name, each in document["event_types"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is not the state of a mirror.") from error
    if known != (FORMAT, source, target):
        raise BadInput(f"{file} is the state of a mirror from {known[1]} to {known[2]}: choose another --state.")
    return state
