"""Acknowledges misfits and gaps of tables: later runs still count them, but no longer warn of them.

The command needs no Spark, since the registry has the numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

from nakadi.app.engines import open_registry
from nakadi.common.caching import Cache
from nakadi.engines.sqlite.file import BadDataFile
from nakadi.event_types.repository import EventTypes
from nakadi.model.outcomes import BadSetting, Unavailable
from nakadi.ports.clock import SystemClock
from nakadi.ports.registry import Registry
from nakadi_jobs import command, table_states
from nakadi_jobs.command import BadArguments
from nakadi_jobs.reports import DONE, NOT_DONE

DESCRIPTION = """\
Mark events that are missing from tables, or do not fit their columns, as known.

Every run of compaction warns of such events until they are known. They stay in the counts of reports and metrics.
After the archive has been repaired, compaction with --read-damaged reads missing events again."""


def main(arguments: Sequence[str] | None = None) -> int:
    known = _options(arguments)
    try:
        with closing(open_registry(command.registry_url(known))) as registry:
            acknowledge(registry, known)
    except (BadArguments, BadSetting, BadDataFile, Unavailable) as reason:
        print(f"acknowledge: cannot be done. {reason}", file=sys.stderr)
        return NOT_DONE
    return DONE


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("acknowledge", DESCRIPTION)
    return command.options(parser, sys.argv[1:] if arguments is None else arguments)


def acknowledge(registry: Registry, known: argparse.Namespace) -> None:
    event_types = {each.name: each for each in EventTypes(registry, Cache(SystemClock(), 1)).all()}
    for name in known.event_types or event_types:
        if name not in event_types:
            raise BadArguments(f'There is no event type "{name}".')
        state = table_states.acknowledge(registry, event_types[name])
        if state is not None and (state.misfit_count or state.unreadable_count):
            print(
                f"{name}: {state.misfit_count} misfits and {state.unreadable_count} missing events are known",
                file=sys.stderr,
            )


if __name__ == "__main__":
    sys.exit(main())
