"""The limits of the Java virtual machine."""

from __future__ import annotations

from nakadi_cli.failures import BadInput
from nakadi_cli.generating.declarations import Record

# A method has at most 255 parameters, and the constructors that compilers add to a class use some of them.
_MOST_MEMBERS = 200


def check_members(record: Record) -> None:
    """Raise `BadInput` for a record with more members than a constructor can have parameters."""
    if len(record.fields) > _MOST_MEMBERS:
        raise BadInput(
            f"{record.name} has {len(record.fields)} members, and a class for the Java virtual machine can have"
            f" {_MOST_MEMBERS} at most."
        )
