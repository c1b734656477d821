"""The command line as a whole: its help, its exit codes, and its start."""

import json
import re
import signal
import subprocess
import sys

import click
import pytest

from nakadi_cli import __version__
from nakadi_cli.commands import Command
from nakadi_cli.program import nakadi
from tests.support.cli import count_parsed_calls, every_command
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT_ENVIRONMENT

LATE = ("httpx", "rich", "yaml", "nakadi", "asyncio")


def test_help_imports_neither_the_broker_nor_what_takes_long():
    """`nakadi --help` imports only click and a few modules of the command line."""
    script = (
        "import sys; from nakadi_cli.__main__ import main; main(['--help']);"
        "import json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=ROOT_ENVIRONMENT
    )
    imported = json.loads(done.stderr)

    assert "event-types" in done.stdout
    assert [each for each in LATE if each in imported] == []
    assert len([each for each in imported if each.startswith("nakadi_cli")]) <= 7


def test_the_command_line_runs_as_a_module(broker):
    """`python -m nakadi_cli` is the command line, and ends with its exit code."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "nakadi_cli", "event-types", "get", "no.such", "--url", broker.url],
        capture_output=True,
        text=True,
        check=False,
        env=ROOT_ENVIRONMENT,
    )

    assert done.returncode == 5
    assert "no.such" in done.stderr


@pytest.mark.parametrize("imported", ["nakadi_cli.program", "click"])
def test_ctrl_c_ends_it_at_any_moment(imported):
    """Ctrl-C during the import of modules ends the program as at any later time: by the signal, and without a
    traceback. The signal may come while Python creates a class and turns each exception into a RuntimeError.
    """
    script = f"""if True:
        import signal, sys
        from nakadi_cli.__main__ import main

        class Member:
            def __set_name__(self, *_):
                signal.raise_signal(signal.SIGINT)

        class Interrupted:
            def find_spec(self, name, *_):
                if name == {imported!r}:
                    type("Owner", (), dict(member=Member()))

        sys.meta_path.insert(0, Interrupted())
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=False, env=ROOT_ENVIRONMENT
    )

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("publish", "any"), -signal.SIGINT),
        (("tail", "any"), -signal.SIGINT),
        (("event-types", "list"), -signal.SIGINT),
    ],
)
def test_ctrl_c_ends_it_where_a_library_waits_for_itself(arguments, code):
    """Ctrl-C ends the program even if a library has just taken a lock that cleaning up and closing also need."""
    script = """if True:
        import signal, sys, threading
        import httpx
        from nakadi_cli.__main__ import main

        lock = threading.Lock()

        def send(*_, **__):
            lock.acquire()
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                lock.acquire()

        httpx.Client.send = send
        httpx.HTTPTransport.close = lambda _: lock.acquire()
        sys.exit(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        input='{"n": 1}',
        capture_output=True,
        text=True,
        check=False,
        env=ROOT_ENVIRONMENT,
        timeout=PATIENCE,
    )

    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("name", "command"), every_command(), ids=lambda each: each if isinstance(each, str) else "")
def test_every_command_explains_itself(name, command):
    """Each command has a description and examples of itself, and each example can be parsed."""
    assert isinstance(command, Command)
    assert command.help
    assert command.examples
    for example in command.examples:
        assert f"nakadi {name}" in example
        assert count_parsed_calls(re.sub(r"^ID=\$\((.*)\)$|^source <\((.*)\)$", r"\1\2", example)) > 0


@pytest.mark.parametrize("arguments", [("event-types",), ("event-types", "get"), ("no-such-thing",), ("--no-option",)])
def test_a_wrong_command_line_is_exit_code_2(run, arguments):
    """If the command line cannot be parsed, the exit code is 2, and the message has a hint."""
    done = run(*arguments)

    assert done.code == 2
    assert done.err or "Usage" in done.out


def test_the_help_of_a_command_shows_its_examples(run):
    """The help of a command ends with examples."""
    assert "nakadi event-types get order.placed" in run("event-types", "get", "--help").out


def test_the_list_of_commands_says_of_each_what_it_is_for():
    """The help of `nakadi` shows the first words of each command's own description."""
    for name, (_, line) in nakadi._commands_at.items():
        command = nakadi.get_command(click.Context(nakadi), name)
        assert command is not None
        assert line


def test_the_command_line_prints_its_version(run):
    """`nakadi --version` prints the version of the distribution."""
    assert run("--version").out == f"nakadi {__version__}\n"


ELSEWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "place",
    [
        lambda url: ("--url", url, "event-types", "list", "-o", "json"),
        lambda url: ("event-types", "--url", url, "list", "-o", "json"),
        lambda url: ("event-types", "list", "--url", url, "-o", "json"),
        lambda url: ("-o", "json", "event-types", "--url", url, "list"),
        lambda url: ("-o", "table", "--url", ELSEWHERE, "event-types", "list", "--url", url, "-o", "json"),
    ],
    ids=["before", "between", "after", "output-before", "twice"],
)
def test_options_for_every_command_stand_before_and_after_it(run, broker, place):
    """The broker and the output can be named before a command, before its last word, or after it; those after it take
    precedence.
    """
    done = run(*place(broker.url), url=ELSEWHERE)

    assert done.code == 0, done.err
    assert isinstance(done.json, list)


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (("--url", ELSEWHERE, "completion", "bash"), "--url before the command has no meaning for nakadi completion"),
        (("--context", "live", "contexts", "list"), "--context before the command has no meaning"),
        (("-o", "json", "subscriptions", "delete", "any"), "--output before the command has no meaning"),
    ],
)
def test_an_option_before_a_command_that_does_nothing_with_it_is_refused(run, arguments, refused):
    """A command refuses options that it would ignore: for the broker if it connects to none, for the output if it shows
    nothing.
    """
    done = run(*arguments)

    assert done.code == 2
    assert refused in done.err
