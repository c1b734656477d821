"""`nakadi serve`, `jobs` and `completion`: what does not ask a broker."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import click

from nakadi_cli.commands import command
from nakadi_cli.failures import BadInput, Failed

_SHELLS = ("bash", "zsh", "fish")
_JOBS = ("compaction", "statistics", "retention")
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


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
    """Start a broker on this machine. OPTIONS are those of python -m nakadi.local; --help lists them."""
    sys.argv = ["nakadi serve", *options]
    try:
        # As the program itself: it takes over signals before it imports what takes long.
        runpy.run_module("nakadi.local", run_name="__main__", alter_sys=False)
    except ModuleNotFoundError as missing:
        raise Failed(f"{missing.name} is missing: pip install 'nakadi-serverless[cli,local]'") from missing


@command(
    "jobs",
    "nakadi jobs compaction --data data",
    "nakadi jobs statistics --data data --plots data/plots",
    "nakadi jobs retention --data data",
    connects=False,
    shows=False,
    context_settings=_PASSED_ON,
)
@click.argument("job", type=click.Choice(_JOBS))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def jobs(job: str, options: tuple[str, ...]) -> None:
    """Run a job on what a broker has archived on this machine; OPTIONS are those of the job. It needs Spark."""
    script = next((file for file in _job_files(job) if file.exists()), None)
    if script is None:
        raise BadInput("The jobs are not beside this installation.")
    sys.argv = [f"nakadi jobs {job}", *options]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except ModuleNotFoundError as missing:
        raise Failed(f"{missing.name} is missing: pip install 'nakadi-serverless[jobs]'") from missing


@command(
    "completion",
    "source <(nakadi completion bash)",
    "nakadi completion fish > ~/.config/fish/completions/nakadi.fish",
    connects=False,
    shows=False,
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print what makes a SHELL complete commands and options.

    \b
    bash: put into ~/.bashrc: source <(nakadi completion bash)
    zsh:  put into ~/.zshrc:  source <(nakadi completion zsh)
    fish: nakadi completion fish > ~/.config/fish/completions/nakadi.fish
    """
    from click.shell_completion import get_completion_class

    from nakadi_cli.program import nakadi

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(nakadi, {}, "nakadi", "_NAKADI_COMPLETE").source())


def _job_files(job: str) -> tuple[Path, Path]:
    """Return where a job is in a checkout, and where it is in what is installed."""
    beside = Path(os.path.realpath(__file__)).parents[1]
    return beside / "glue_jobs" / f"{job}.py", beside / "nakadi_cdk" / "deployed" / "glue_jobs" / f"{job}.py"
