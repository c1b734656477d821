"""`nakadi serve`, `jobs`, `backup`, `restore` and `completion`."""

import re
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

from nakadi_cli.local_commands import _JOBS
from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, ROOT_ENVIRONMENT, run_process


def test_a_broker_is_served_until_a_signal(run, tmp_path):
    """`nakadi serve` runs the local program with its options, and ends with exit code 0 at SIGTERM."""
    command = [sys.executable, "-m", "nakadi_cli", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    with run_process(command, ROOT_ENVIRONMENT) as process:
        greeting = ""
        while "Ctrl-C ends it." not in greeting:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            greeting += line
        well = run("doctor", url=re.search(r"ready at (\S+)", greeting)[1])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)

    assert well.code == 0, well.out
    assert process.returncode == 0
    assert (tmp_path / "data").is_dir()


@pytest.mark.parametrize("job", _JOBS)
def test_each_job_that_can_be_named_exists(job):
    """Each job that the command accepts is a module."""
    assert find_spec("nakadi_jobs" if job == "all" else f"nakadi_jobs.{job}") is not None


def test_a_job_that_there_is_not_is_refused(run):
    """For an unknown job, the message names the jobs that exist."""
    done = run("jobs", "dance")

    assert done.code == 2
    assert "compaction" in done.err


def test_jobs_are_explained(run, monkeypatch):
    """`nakadi jobs --help` shows the command's own help; after the name of a job, `--help` shows the job's help."""
    asked = []
    monkeypatch.setattr("runpy.run_module", lambda *_, **__: asked.append(sys.argv))

    assert "nakadi jobs all --data data" in run("jobs", "--help").out
    assert run("jobs", "compaction", "--help", "--data", "x").code == 0
    assert asked == [["nakadi jobs", "compaction", "--help", "--data", "x"]]


def test_jobs_that_are_not_installed(run, monkeypatch):
    """Without the package of the jobs, the message says how to install it."""
    monkeypatch.setattr("nakadi_cli.local_commands.find_spec", lambda _name: None)

    done = run("jobs", "compaction")

    assert done.code == 1
    assert "nakadi_jobs is missing: pip install 'nakadi-serverless[jobs]'" in done.err


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_backups_have_a_program_of_their_own(run, monkeypatch, command):
    """`backup` and `restore` pass all arguments to their programs, including --help. (B14)"""
    asked = []
    monkeypatch.setattr("runpy.run_module", lambda name, **_: asked.append((name, sys.argv)))

    assert run(command, "folder", "--help").code == 0
    assert asked == [(f"nakadi.local.backups.{command}", [f"nakadi {command}", "folder", "--help"])]
    assert find_spec(asked[0][0]) is not None


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_taught_to_complete(run, shell, monkeypatch):
    """`completion` prints a script that asks `nakadi` itself for candidates."""
    monkeypatch.setattr("click.shell_completion.BashComplete._check_version", lambda *_: None)

    assert "_NAKADI_COMPLETE" in run("completion", shell).out


def test_fish_shows_whole_descriptions(run):
    """The script for fish splits each candidate only at the first comma, after its kind, so descriptions may contain
    commas.
    """
    assert 'string split --max 1 "," $completion' in run("completion", "fish").out


def test_commands_and_options_are_completed():
    """Completion offers commands, the commands of groups, and options."""

    def complete(words, at):
        done = subprocess.run(
            [sys.executable, "-m", "nakadi_cli"],
            env={
                **ROOT_ENVIRONMENT,
                "_NAKADI_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(at),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    assert complete("nakadi sub", 1) == {"subscriptions"}
    assert complete("nakadi subscriptions re", 2) == {"reset"}
    assert "--dry-run" in complete("nakadi subscriptions reset --", 3)


@pytest.mark.parametrize(
    ("arguments", "shown"), [(["--help"], "event-types"), (["jobs", "retention", "--help"], "--grace-hours")]
)
def test_the_console_script_of_a_checkout_runs(tmp_path, arguments, shown):
    """The script that `make run` writes beside Python runs from any folder, without variables in the environment."""
    script = tmp_path / "with a space" / "nakadi"
    script.parent.mkdir()
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "console-script"), str(script)], env=plain_environment(), check=True
    )

    done = subprocess.run(
        [str(script), *arguments], cwd=tmp_path, env=plain_environment(), capture_output=True, text=True, check=True
    )

    assert shown in done.stdout
