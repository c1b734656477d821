"""`nakadi apply` and `nakadi diff`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from nakadi_cli.api import Api
from nakadi_cli.applying import Step, execute_step, plan_deletions, plan_step
from nakadi_cli.commands import ask_for, chosen_format, command, connect, print_note, print_result
from nakadi_cli.contexts import config_path, load_contexts
from nakadi_cli.failures import BadInput, CheckFoundProblems, Failed, PartlyFailed
from nakadi_cli.manifests import Chosen, read_manifests
from nakadi_cli.output import compact, harmless

_SIGNS = {"create": "+", "change": "~", "keep": "=", "pass over": "!", "delete": "-"}
_COLORS = {"create": "green", "change": "yellow", "pass over": "magenta", "delete": "red"}
_CHANGES = {"create", "change", "delete"}
_MISSING = "(nothing)"


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--prune", is_flag=True, help="Also delete resources of the files' applications that are in no file."
        ),
        click.option("--id", "ids", multiple=True, help="Only these processes of a clin file."),
        click.option(
            "--env", "target", help="The environment of a clin file; the command also uses the context with that name."
        ),
        click.option(
            "--var", "pairs", multiple=True, help="A variable, as NAME=value; the environment provides the others."
        ),
        click.option("-f", "--file", "file", required=True, help="A folder, a manifest, or a clin file."),
    ):
        function = option(function)
    return function


@command(
    "apply",
    "nakadi apply -f events/ --dry-run",
    "nakadi apply -f order.placed.yaml --var TEAM=shop",
    "nakadi apply -f shop.clin.yaml --env staging",
    "nakadi apply -f shop.clin.yaml --env live --prune --dry-run",
)
@_options
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def apply(
    file: str, pairs: tuple[str, ...], target: str | None, ids: tuple[str, ...], prune: bool, dry_run: bool, yes: bool
) -> None:
    """Create and change event types and subscriptions so that they match the files.

    The files have the format of clin. The command does not change resources that match them or that they do not name.
    With --prune, it deletes event types and subscriptions that belong to an application in the files but are in none of
    them; it first shows them and asks you to type their number. It skips SQL queries with a warning.
    """
    api, steps = _plan(file, pairs, target, ids, prune=prune)
    failures: list[tuple[Step, Failed]] = []
    if not dry_run:
        _confirm_deletions([step for step in steps if step.action == "delete"], skip=yes)
        for step in steps:
            try:
                for warning in execute_step(api, step):
                    print_note(harmless(f"{step.kind} {step.name}: {warning}."))
            except Failed as failed:
                failures.append((step, failed))
    _show(steps, failures)
    _report_and_exit(steps, failures)
    if dry_run:
        print_note("Nothing was changed.")


@command(
    "diff",
    "nakadi diff -f events/",
    "nakadi diff -f shop.clin.yaml --env live -o json",
)
@_options
def diff(file: str, pairs: tuple[str, ...], target: str | None, ids: tuple[str, ...], prune: bool) -> None:
    """Show how event types and subscriptions differ from files. The exit code is 1 if they do."""
    _, steps = _plan(file, pairs, target, ids, prune=prune)
    _show(steps, ())
    if different := sum(step.action in _CHANGES for step in steps):
        raise CheckFoundProblems(f"{different} of {len(steps)} differ.")


def _plan(
    file: str, pairs: Iterable[str], target: str | None, ids: tuple[str, ...], *, prune: bool
) -> tuple[Api, list[Step]]:
    place = Path(file)
    if not place.exists():
        raise BadInput(f"There is no {file}.")
    named = dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)
    manifests = read_manifests(place, {**os.environ, **named}, Chosen(target, ids))
    is_context = target in load_contexts(config_path()).by_name and not os.environ.get("NAKADI_URL")
    api = connect(target if is_context else None)
    steps = [plan_step(api, manifest) for manifest in manifests]
    return api, [*steps, *(plan_deletions(api, manifests, steps) if prune else ())]


def _confirm_deletions(deletions: list[Step], *, skip: bool) -> None:
    if not deletions:
        return
    for step in deletions:
        print_note(harmless(f"{_SIGNS['delete']} {step.kind} {step.name}"))
    number = str(len(deletions))
    ask_for(
        number, f"To delete these permanently, with their events and cursors, type their number, {number}", skip=skip
    )


def _report_and_exit(steps: Sequence[Step], failures: Sequence[tuple[Step, Failed]]) -> None:
    """Report each failure once. If every step failed, the exit code is the first failure's."""
    if not failures:
        return
    sentences = [harmless(f"{step.kind} {step.name}: {failure.message}") for step, failure in failures]
    changes, first = sum(step.action in _CHANGES for step in steps), type(failures[0][1])
    if changes == len(failures) == 1:
        raise first(sentences[0])
    for sentence in sentences:
        print_note(sentence)
    if changes == len(failures):
        raise first(f"None of {changes} could be applied.")
    raise PartlyFailed(f"{len(failures)} of {changes} could not be applied.")


def _show(steps: Iterable[Step], failures: Iterable[tuple[Step, Failed]]) -> None:
    failed = {id(step): failure.message for step, failure in failures}
    if chosen_format("table") != "table":
        print_result([_row(step, failed.get(id(step))) for step in steps])
        return
    for step in steps:
        sign = "x" if id(step) in failed else _SIGNS[step.action]
        color = "red" if id(step) in failed else _COLORS.get(step.action)
        click.secho(harmless(f"{sign} {step.kind} {step.name}"), fg=color)
        for each in step.differences:
            before, after = (_MISSING if value is None else compact(value) for value in (each.is_now, each.shall_be))
            click.echo(harmless(f"    {each.path}: {before} -> {after}"))
        for warning in step.warnings:
            print_note(harmless(f"{step.kind} {step.name}: warning: {warning}"))
        if step.action == "pass over":
            print_note(f"{step.kind} {step.name} is skipped: this broker has no SQL queries.")


def _row(step: Step, failure: str | None) -> dict[str, Any]:
    changes = [{"path": each.path, "is_now": each.is_now, "shall_be": each.shall_be} for each in step.differences]
    row = {"kind": step.kind, "name": step.name, "action": step.action, "differences": changes}
    if step.warnings:
        row["warnings"] = list(step.warnings)
    return {**row, "failure": failure} if failure else row
