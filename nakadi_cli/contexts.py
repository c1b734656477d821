"""Contexts: brokers by name, in one file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nakadi_cli.api import Connection
from nakadi_cli.failures import BadInput

LOCAL = "http://127.0.0.1:8080"
_COMMAND_SECONDS = 60


@dataclass(frozen=True)
class Context:
    """A broker, and the source of its token: a value, a file, or the output of a command."""

    url: str
    token: str | None = None
    token_file: str | None = None
    token_command: str | None = None

    @property
    def token_source(self) -> str:
        """Where the token comes from, without the token."""
        if self.token_command:
            return f"command: {self.token_command}"
        if self.token_file:
            return f"file: {self.token_file}"
        return "value" if self.token else "none"

    def obtain_token(self) -> str | None:
        if self.token_command:
            return _run_command(self.token_command)
        if self.token_file:
            return _read_file(Path(self.token_file).expanduser())
        return self.token


@dataclass(frozen=True)
class Contexts:
    """All contexts, and the current one."""

    by_name: Mapping[str, Context]
    current: str | None = None

    def named(self, name: str) -> Context:
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise BadInput(f"There is no context {name}. There are: {known}.")
        return self.by_name[name]

    def with_one(self, name: str, context: Context) -> Contexts:
        return replace(self, by_name={**self.by_name, name: context}, current=self.current or name)

    def without(self, name: str) -> Contexts:
        self.named(name)
        rest = {each: context for each, context in self.by_name.items() if each != name}
        return Contexts(rest, None if self.current == name else self.current)


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file with the contexts: `NAKADI_CONFIG`, or a file in the folder for configuration."""
    if chosen := environ.get("NAKADI_CONFIG"):
        return Path(chosen).expanduser()
    return Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nakadi" / "config.yaml"


def load_contexts(file: Path) -> Contexts:
    if not file.exists():
        return Contexts({})
    import yaml

    try:
        document = yaml.safe_load(file.read_text()) or {}
        by_name = {name: Context(**fields) for name, fields in (document.get("contexts") or {}).items()}
    except (OSError, ValueError, yaml.YAMLError, TypeError, AttributeError) as error:
        # The message shows neither the content nor the cause, because they may contain a token.
        raise BadInput(f"Cannot read the contexts in {file}: `nakadi contexts set` did not write it.") from error
    return Contexts(by_name, document.get("current"))


def save_contexts(file: Path, contexts: Contexts) -> None:
    """Write the contexts, readable only by their owner. A process that reads meanwhile sees the old or the new
    ones."""
    import yaml

    fields = {
        name: {key: value for key, value in vars(context).items() if value}
        for name, context in contexts.by_name.items()
    }
    document: dict[str, Any] = {"current": contexts.current, "contexts": fields}
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(yaml.safe_dump(document, sort_keys=False))
    draft.replace(file)


def connection(*, context: str | None, url: str | None, environ: Mapping[str, str] = os.environ) -> Connection:
    """Decide which broker to use.

    An option takes precedence over the environment, and the environment over the current context. The token of a
    context is sent only to the URL of that context: a URL from elsewhere uses `NAKADI_TOKEN` or no token.
    """
    file_of_contexts = config_path(environ)
    chosen: Context | None = None
    if context:
        chosen = load_contexts(file_of_contexts).named(context)
    elif not url and not environ.get("NAKADI_URL"):
        contexts = load_contexts(file_of_contexts)
        chosen = contexts.named(contexts.current) if contexts.current else None
    where = checked_url(url or (chosen.url if chosen else None) or environ.get("NAKADI_URL") or LOCAL)
    if chosen and checked_url(chosen.url) != where:
        chosen = None

    def token() -> str | None:
        return _check_token(environ.get("NAKADI_TOKEN") or (chosen.obtain_token() if chosen else None))

    return Connection(where, token)


def checked_url(url: str) -> str:
    """Return a URL without a slash at its end, or reject it."""
    try:
        parts = urlsplit(url)
        proper = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        proper = False
    if not proper or parts.query or parts.fragment:
        raise BadInput("A broker's URL begins with http:// or https:// and ends with its path, such as " + LOCAL + ".")
    if parts.username or parts.password:
        raise BadInput("A broker's URL must not contain a user name or a password; set a token instead.")
    return url.rstrip("/")


def _check_token(token: str | None) -> str | None:
    token = (token or "").strip()
    if not all("!" <= character <= "~" for character in token):
        raise BadInput("The token has characters that a header cannot contain.")
    return token or None


def _run_command(command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S602  # the user's own command, written as for a shell
            command,
            shell=True,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=_COMMAND_SECONDS,
        )
    except subprocess.CalledProcessError as failed:
        raise BadInput(f"The command for the token ended with exit code {failed.returncode}.") from None
    except subprocess.TimeoutExpired:
        raise BadInput(f"The command for the token took more than {_COMMAND_SECONDS} seconds.") from None
    return done.stdout


def _read_file(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError) as error:
        raise BadInput(f"The token's file {file} cannot be read: {getattr(error, 'strerror', 'no text')}.") from None
