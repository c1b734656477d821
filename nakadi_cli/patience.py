"""How long `tail` and `consume` wait for a broker, and their messages meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nakadi_cli.api import failure_of
from nakadi_cli.commands import print_note
from nakadi_cli.output import harmless
from nakadi_client import NakadiError, Patience, Refused, Trouble

# The partitions of a consumer that disconnected are free after its commit timeout, which is at most a minute.
PATIENCE = Patience(without_answer=15.0, without_slot=80.0)

_TAKEN = 409


def show_trouble(trouble: Trouble) -> None:
    """Report a failure, unless the error ends the command, which reports it anyway."""
    status = trouble.error.status if isinstance(trouble.error, Refused) else None
    if status == _TAKEN:
        if trouble.failures == 1:
            print_note(f"{harmless(str(trouble.error))} Waiting.")
    elif status is None or status >= 500 or status in (408, 429):
        print_note(f"{harmless(str(trouble.error))} Trying again.")


@contextmanager
def client_failures() -> Iterator[None]:
    """Turn the client's errors into failures of a command."""
    try:
        yield
    except NakadiError as error:
        raise failure_of(error) from error
