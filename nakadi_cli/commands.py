"""Parts that all commands share: options, examples in the help, and the connection to the broker.

Modules of commands are imported when one of their commands runs. Packages that take long to import are imported where
they are used. So `nakadi --help` answers at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click

from nakadi_cli.api import Api, Connection
from nakadi_cli.failures import BadInput
from nakadi_cli.output import FORMATS, Format, show_value

_TICK = 0.5

CONTEXT, URL, OUTPUT = "nakadi.context", "nakadi.url", "nakadi.output"


class Command(click.Command):
    """A command with examples in its help; `connects` gives it the options that select the broker."""

    def __init__(
        self, *arguments: Any, examples: Sequence[str] = (), connects: bool = True, shows: bool = True, **rest: Any
    ) -> None:
        super().__init__(*arguments, **rest)
        self.examples = tuple(examples)
        taken = {OUTPUT: shows, CONTEXT: connects, URL: connects}
        self._refused = [key for key, takes in taken.items() if not takes]
        self.params += _global_options(key for key, takes in taken.items() if takes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments after the command, and refuse arguments before it that have no meaning for it."""
        rest = super().parse_args(ctx, args)
        refused = [_GLOBAL[key][0][-1] for key in self._refused if key in ctx.meta]
        if refused and not ctx.resilient_parsing:
            raise click.UsageError(f"{refused[0]} before the command has no meaning for {ctx.command_path}.", ctx)
        return rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """Commands of one noun, and the options that may precede any of them."""

    command_class = Command

    def __init__(self, *arguments: Any, **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self.params += _global_options(_GLOBAL)


class LazyGroup(Group):
    """Commands by name, each as `module:attribute` with a line for the help; imported when it runs."""

    def __init__(self, *arguments: Any, commands_at: Mapping[str, tuple[str, str]], **rest: Any) -> None:
        super().__init__(*arguments, **rest)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's
        if cmd_name not in self._commands_at:
            return None
        module, _, attribute = self._commands_at[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._commands_at.items()])


def command(name: str, *examples: str, **rest: Any) -> Callable[[Callable[..., Any]], Command]:
    """Turn a function into a command."""
    return click.command(name, cls=Command, examples=examples, **rest)


def subcommand(
    group: click.Group, name: str, *examples: str, **rest: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command of a group."""
    return group.command(name, cls=Command, examples=examples, **rest)


def connect(context: str | None = None) -> Api:
    """Return an `Api` for the chosen broker; `context` is as in `chosen_connection`."""
    api = Api(chosen_connection(context))
    click.get_current_context().call_on_close(api.close)
    return api


def chosen_connection(context: str | None = None) -> Connection:
    """Decide which broker the options, the environment and the contexts name, in this order.

    `context` is the context that a command proposes for the case that the options choose neither a context nor a URL.
    """
    from nakadi_cli.contexts import connection

    return connection(context=_meta(CONTEXT) or (None if _meta(URL) else context), url=_meta(URL))


def chosen_format(default: Format) -> Format:
    """Return the format in which to print the result."""
    return _meta(OUTPUT) or default


def print_result(value: Any, columns: Mapping[str, Callable[[Any], object]] | None = None) -> None:
    """Print a result: a list as a table and a single thing as YAML, unless the user chose another form."""
    show_value(value, chosen_format("table" if columns else "yaml"), columns)


def ask_for(expected: str, question: str, *, skip: bool) -> None:
    """Before a deletion, ask the user to type the expected text, unless `skip` is set, and refuse every other text."""
    if skip:
        return
    try:
        typed = click.prompt(question, default="", show_default=False, err=True)
    except click.Abort as ended:
        # Click handles Ctrl-C in this way too.
        if isinstance(ended.__context__, EOFError):
            print_note("")
            raise BadInput("No answer, so nothing was deleted; --yes deletes without asking.") from None
        raise
    if typed != expected:
        raise BadInput(f"That is not {expected}; nothing was deleted.")


@contextmanager
def noticing_signals() -> Iterator[None]:
    """Notice every signal during a call that may wait for a long time. Python handles a signal between two of its
    steps, or when the signal ends a call that waits. A signal after the last step and before the call waits would be
    noticed when the call ends: with the next event, or in two minutes. A timer interrupts such calls twice a second,
    and Python resumes them.
    """
    before = signal.signal(signal.SIGALRM, _ignore_signal)
    signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
    try:
        yield
    finally:
        # After an interruption, the timer repeats the interruption instead, until the command has ended.
        if signal.getsignal(signal.SIGALRM) is _ignore_signal:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def interrupt(by: type[BaseException]) -> NoReturn:
    """Raise `by` from a signal handler, and again at each tick of a timer until the process ends.

    The signal may come when a library has just taken a lock but has not recorded that yet. The library would then wait
    forever for its own lock: first when it cleans up, and again when it is closed.
    """

    def again(*_: object) -> None:
        raise by

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
    raise by


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the only purpose of this signal is to end a call that waits."""


def print_note(sentence: str) -> None:
    """Print a note to standard error; standard output is for the result."""
    click.echo(sentence, err=True)


def _meta(key: str) -> Any:
    return click.get_current_context().meta.get(key)


_GLOBAL: Mapping[str, tuple[Sequence[str], str, click.ParamType[Any] | None]] = {
    OUTPUT: (("-o", "--output"), "The format of the result.", click.Choice(FORMATS)),
    CONTEXT: (("--context",), "The context to use, instead of the current one.", None),
    URL: (("--url",), "The broker's URL, instead of a context.", None),
}


def _global_options(keys: Iterable[str]) -> Iterator[click.Option]:
    """Options that may precede or follow a command; options after the command win, since they are read last."""
    for key in keys:
        names, help_text, kind = _GLOBAL[key]
        yield click.Option(names, type=kind, help=help_text, expose_value=False, callback=_keep_option(key))


def _keep_option(key: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def keep(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta[key] = value

    return keep
