"""`nakadi serve`, `jobs`, `backup`, `restore` and `completion`: commands that call no broker."""

from __future__ import annotations

import runpy
import signal
import sys
from importlib.util import find_spec

import click

from nakadi_cli.commands import command
from nakadi_cli.failures import Failed

_SHELLS = ("bash", "zsh", "fish")
_JOBS = ("compaction", "statistics", "retention", "follow", "acknowledge", "all")
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

# Arguments after the name of a job belong to the job, including --help.
_BEHIND_A_JOB = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@command(
    "serve",
    "nakadi serve",
    "nakadi serve --port 9090 --data /var/lib/nakadi",
    "nakadi serve --engine memory",
    connects=False,
    shows=False,
    context_settings=_PASSED_ON,
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def serve(options: tuple[str, ...]) -> None:
    """Start a broker on this machine. It accepts the OPTIONS of python -m nakadi.local; --help lists them."""
    # The program handles signals before its slow imports.
    _run_program("nakadi.local", ["nakadi serve", *options], extras="cli")


@command(
    "jobs",
    "nakadi jobs all --data data --plots data/plots",
    "nakadi jobs compaction --data data",
    "nakadi jobs statistics --data data --plots data/plots",
    "nakadi jobs retention --data data",
    "nakadi jobs follow --data data",
    "nakadi jobs acknowledge --data data --event-types order.placed",
    connects=False,
    shows=False,
    context_settings=_BEHIND_A_JOB,
)
@click.argument("job", type=click.Choice(_JOBS))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def jobs(job: str, options: tuple[str, ...]) -> None:
    """Run a job, or all of them, on the archive of a broker on this machine. It needs Spark; OPTIONS are the job's.

    `follow` keeps tables up to date until you interrupt it; all others end. `acknowledge` needs no Spark, and ends
    warnings about known events.
    """
    _run_program("nakadi_jobs", ["nakadi jobs", *(() if job == "all" else (job,)), *options], extras="jobs")


@command(
    "backup",
    "nakadi backup /mnt/backups/nakadi",
    "nakadi backup /mnt/backups/nakadi --data /var/lib/nakadi --keep 14",
    "nakadi backup /mnt/backups/nakadi --verify",
    "nakadi backup /mnt/backups/nakadi --list",
    "nakadi backup s3://nakadi-backups/live --stage nakadi-live --region eu-central-1",
    connects=False,
    shows=False,
    context_settings=_PASSED_ON,
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def backup(options: tuple[str, ...]) -> None:
    """Back up the data folder of a broker on this machine, or a stage on AWS, while it runs."""
    _run_program("nakadi.local.backups.backup", ["nakadi backup", *options], extras=_extras_of_backups(options))


@command(
    "restore",
    "nakadi restore /mnt/backups/nakadi --data /var/lib/nakadi",
    "nakadi restore /mnt/backups/nakadi --data old --backup 2026-11-27T05-50-00.000000Z",
    "nakadi restore s3://nakadi-backups/live --stage nakadi-live --region eu-west-1",
    connects=False,
    shows=False,
    context_settings=_PASSED_ON,
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def restore(options: tuple[str, ...]) -> None:
    """Restore a backup into a new data folder, or into a new stage on AWS."""
    _run_program("nakadi.local.backups.restore", ["nakadi restore", *options], extras=_extras_of_backups(options))


def _extras_of_backups(options: tuple[str, ...]) -> str:
    return "cli,aws" if any(each.startswith("--stage") for each in options) else "cli"


def _run_program(module: str, arguments: list[str], *, extras: str) -> None:
    """Run another program in this process. It may take some time to end, so an interruption is not repeated."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = arguments
    package, _, _ = module.partition(".")
    if find_spec(package) is None:  # runpy does not name a missing package
        raise _missing(package, extras)
    try:
        runpy.run_module(module, run_name="__main__")
    except ModuleNotFoundError as missing:
        raise _missing(missing.name, extras) from missing


def _missing(package: str | None, extras: str) -> Failed:
    return Failed(f"{package} is missing: pip install 'nakadi-serverless[{extras}]'")


@command(
    "completion",
    "source <(nakadi completion bash)",
    "nakadi completion fish > ~/.config/fish/completions/nakadi.fish",
    connects=False,
    shows=False,
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in SHELL.

    \b
    bash: put into ~/.bashrc: source <(nakadi completion bash)
    zsh:  put into ~/.zshrc:  source <(nakadi completion zsh)
    fish: nakadi completion fish > ~/.config/fish/completions/nakadi.fish
    """
    from click.shell_completion import get_completion_class

    from nakadi_cli.program import nakadi

    found = get_completion_class(shell)
    assert found is not None
    source = found(nakadi, {}, "nakadi", "_NAKADI_COMPLETE").source()
    # Click's script for fish cuts descriptions at their first comma.
    click.echo(source.replace('string split ","', 'string split --max 1 ","'))
