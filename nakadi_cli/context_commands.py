"""`nakadi contexts`."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from nakadi_cli.commands import Group, print_note, print_result, subcommand
from nakadi_cli.contexts import Context, checked_url, config_path, load_contexts, save_contexts
from nakadi_cli.failures import BadInput


@click.group(cls=Group)
def contexts() -> None:
    """Store brokers by name, with their tokens, in one file: NAKADI_CONFIG, or nakadi/config.yaml in ~/.config."""


@subcommand(contexts, "list", "nakadi contexts list", "nakadi contexts list -o json", connects=False)
def list_contexts() -> None:
    """List all contexts. The list shows where tokens come from, but never the tokens."""
    known = load_contexts(config_path())
    rows = [
        {"name": name, "url": each.url, "token": each.token_source, "current": name == known.current}
        for name, each in known.by_name.items()
    ]
    print_result(
        rows,
        {
            "CURRENT": lambda row: "*" if row["current"] else "",
            "NAME": lambda row: row["name"],
            "URL": lambda row: row["url"],
            "TOKEN": lambda row: row["token"],
        },
    )


@subcommand(
    contexts,
    "set",
    "nakadi contexts set local --url http://127.0.0.1:8080",
    "nakadi contexts set live --url https://nakadi.example.org --token-command 'my-login token'",
    "nakadi contexts set test --token-file ~/.nakadi-token",
    connects=False,
    shows=False,
)
@click.argument("name")
@click.option("--url", help="The broker's URL.")
@click.option("--token", help="The token itself; - reads it from standard input, so that no shell history keeps it.")
@click.option("--token-file", help="A file with the token; each command reads it.")
@click.option("--token-command", help="A command that prints a token; each command runs it.")
def set_context(
    name: str, url: str | None, token: str | None, token_file: str | None, token_command: str | None
) -> None:
    """Create or change a context. The first one becomes the current one."""
    file = config_path()
    known = load_contexts(file)
    if sum(each is not None for each in (token, token_file, token_command)) > 1:
        raise BadInput("Give only one of --token, --token-file and --token-command.")
    if url is None and name not in known.by_name:
        raise BadInput("A new context needs --url.")
    context = known.by_name.get(name) or Context(url or "")
    if url is not None:
        # A token must only be sent to the host for which it was stored.
        context = replace(context, url=checked_url(url)) if url == context.url else Context(checked_url(url))
    if token is not None:
        from_stdin = token == "-"  # noqa: S105  # a hyphen is no token
        context = Context(context.url, token=sys.stdin.read().strip() if from_stdin else token)
    if token_file is not None:
        context = Context(context.url, token_file=token_file)
    if token_command is not None:
        context = Context(context.url, token_command=token_command)
    save_contexts(file, known.with_one(name, context))
    print_note(f"Context {name} is {context.url}, token: {context.token_source}.")


@subcommand(contexts, "use", "nakadi contexts use live", connects=False, shows=False)
@click.argument("name")
def use_context(name: str) -> None:
    """Make a context the current one."""
    known = load_contexts(config_path())
    known.named(name)
    save_contexts(config_path(), replace(known, current=name))
    print_note(f"The current context is {name}.")


@subcommand(contexts, "delete", "nakadi contexts delete test", connects=False, shows=False)
@click.argument("name")
def delete_context(name: str) -> None:
    """Delete a context."""
    save_contexts(config_path(), load_contexts(config_path()).without(name))
    print_note(f"Deleted context {name}.")
