"""`nakadi mirror`: copies event types, events and subscriptions from one broker to another."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nakadi_cli.api import Api
from nakadi_cli.commands import command, noticing_signals, print_note
from nakadi_cli.contexts import connection
from nakadi_cli.failures import BadInput, CheckFoundProblems, Failed, PartlyFailed
from nakadi_cli.mirroring.definitions import matching_definitions, prepare_event_type
from nakadi_cli.mirroring.events import copy_events, is_compacted
from nakadi_cli.mirroring.positions import move_subscription
from nakadi_cli.mirroring.removals import delete_removed
from nakadi_cli.mirroring.state import State, open_state
from nakadi_cli.mirroring.verifying import compare_event_type
from nakadi_cli.output import format_count

_SECONDS_BETWEEN_ROUNDS = 2.0


@command(
    "mirror",
    "nakadi mirror --from http://old:8080 --to http://127.0.0.1:8080",
    "nakadi mirror --from old --to new --event-types 'order.*' --deduplicate",
    "nakadi mirror --from old --to new --once --verify",
    "nakadi mirror --from old --to new --move 7c1d4b6e-1b52-4f4f-9f0e-2b6a0f3c9d11",
    connects=False,
    shows=False,
)
@click.option("--from", "source", required=True, metavar="URL", help="The broker to copy from: a URL or a context.")
@click.option("--to", "target", required=True, metavar="URL", help="The broker to copy to: a URL or a context.")
@click.option("--event-types", "patterns", multiple=True, metavar="PATTERN", help="Only these, such as 'order.*'.")
@click.option("--once", is_flag=True, help="Copy the existing events, and end.")
@click.option("--deduplicate", is_flag=True, help="Let new event types in the target store each event once.")
@click.option(
    "--tombstones",
    is_flag=True,
    help="Copy, delete keys of compacted event types that only the target has, and end.",
)
@click.option("--verify", is_flag=True, help="Copy the existing data, compare both brokers, and end.")
@click.option("--move", "moved", multiple=True, metavar="SUBSCRIPTION", help="Copy, move this subscription, and end.")
@click.option(
    "--state",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("mirror.json"),
    show_default=True,
    help="The file that stores the mirror's progress.",
)
def mirror(  # noqa: PLR0913, PLR0917  # each is an option
    source: str,
    target: str,
    patterns: tuple[str, ...],
    once: bool,
    deduplicate: bool,
    tombstones: bool,
    verify: bool,
    moved: tuple[str, ...],
    file: Path,
) -> None:
    """Copy event types, their events and subscriptions from a Nakadi to another, until you interrupt it.

    It continues where it stopped. Name brokers that need tokens by contexts; the command never sends NAKADI_TOKEN.
    """
    with noticing_signals():
        mirrored = _Mirror(_open(source), _open(target), patterns or ("*",), deduplicate)
        if mirrored.source.url == mirrored.target.url:
            raise BadInput("--from and --to are the same broker.")
        try:
            with open_state(file, mirrored.source.url, mirrored.target.url) as state:
                if not (once or tombstones or verify or moved):
                    mirrored.follow(state)
                mirrored.copy(state)
                if tombstones:
                    mirrored.delete_removed(state)
                if verify:
                    mirrored.verify(state)
                for each in moved:
                    mirrored.move(state, each)
        finally:
            mirrored.source.close()
            mirrored.target.close()


def _open(place: str) -> Api:
    """The broker at a URL, called without a token, or the broker of a context. A token of one broker must not reach the
    other.
    """
    environ = {name: value for name, value in os.environ.items() if name not in ("NAKADI_TOKEN", "NAKADI_URL")}
    is_url = "://" in place
    return Api(connection(context=None if is_url else place, url=place if is_url else None, environ=environ))


class _Mirror:
    def __init__(self, source: Api, target: Api, patterns: Sequence[str], deduplicates: bool) -> None:
        self.source = source
        self.target = target
        self._patterns = patterns
        self._deduplicates = deduplicates
        self._noted: set[str] = set()

    def follow(self, state: State) -> None:
        """Copy in rounds. Report a failure when it begins, and when it changes."""
        known: dict[str, str] = {}
        while True:
            failures = self._copy_round(state)
            for name in failures.keys() - {each for each in known if known[each] == failures.get(each)}:
                print_note(f"{name}: {failures[name]}")
            for name in known.keys() - failures.keys():
                print_note(f"{name}: copying continues.")
            known = failures
            time.sleep(_SECONDS_BETWEEN_ROUNDS)

    def copy(self, state: State) -> None:
        before = sum(each.copied for each in state.event_types.values())
        failures = self._copy_round(state)
        copied = sum(each.copied for each in state.event_types.values()) - before
        print_note(f"Copied {format_count(copied, 'event')} of {format_count(len(state.event_types), 'event type')}.")
        if failures:
            raise PartlyFailed("; ".join(f"{name}: {failure}" for name, failure in failures.items()))

    def delete_removed(self, state: State) -> None:
        for definition in filter(is_compacted, self._definitions()):
            partitions = list(state.progress_of(definition["name"]).offsets)
            deleted = delete_removed(self.source, self.target, definition, partitions)
            print_note(f"{definition['name']}: deleted {format_count(deleted, 'key')} that the source has removed.")

    def verify(self, state: State) -> None:
        differing = 0
        for definition in self._definitions():
            name = definition["name"]
            found = compare_event_type(self.source, self.target, definition, state.progress_of(name).offsets)
            differing += len(found.differences) + len(found.missing_versions)
            click.echo(
                f"{name}: {format_count(found.events, 'event')}, {found.repeated} stored more than once, "
                f"{len(found.differences)} of {format_count(found.minutes, 'minute')} differ"
            )
            for version in found.missing_versions:
                click.echo(f"  version {version} of the schema is not there")
            for each in found.differences:
                click.echo(
                    f"  partition {each.partition}, {each.minute or 'without a time'}: "
                    f"{each.in_source} there, {each.in_target} here"
                )
        if differing:
            raise CheckFoundProblems("The brokers differ.")

    def move(self, state: State, subscription_id: str) -> None:
        moved = move_subscription(self.source, self.target, subscription_id, state)
        click.echo(moved.subscription_id)
        print_note(f"{format_count(moved.waiting, 'event')} wait there, and {moved.doubled} come again.")

    def _note_once(self, sentence: str) -> None:
        if sentence not in self._noted:
            self._noted.add(sentence)
            print_note(sentence)

    def _definitions(self) -> list[dict[str, Any]]:
        return matching_definitions(self.source, self._patterns)

    def _copy_round(self, state: State) -> dict[str, str]:
        """Copy what the source has now. Returns the reasons why event types are incomplete."""
        from nakadi_cli.api import failure_of
        from nakadi_client import NakadiError

        failures = {}
        for definition in self._definitions():
            name = definition["name"]
            try:
                partitions = prepare_event_type(
                    self.source, self.target, definition, self._note_once, deduplicates=self._deduplicates
                )
                progress = state.progress_of(name)
                copy_events(self.source, self.target, definition, partitions, progress, state.save)
            except Failed as failure:
                failures[name] = failure.message
            except NakadiError as error:
                failures[name] = failure_of(error).message
        return failures
