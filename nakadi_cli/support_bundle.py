"""`nakadi support-bundle`: writes one file with the information about a broker that helpers need, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import click

from nakadi_cli import __version__
from nakadi_cli.api import Api
from nakadi_cli.commands import command, connect, print_note
from nakadi_cli.doctor import examine_broker
from nakadi_cli.failures import BadInput, Failed
from nakadi_cli.redaction import secret_values, shown_settings, without_secrets

_LOG_BYTES = 2_000_000
"""How many bytes of the end of each log the bundle contains."""


@command(
    "support-bundle",
    "nakadi support-bundle",
    "nakadi support-bundle --log /var/log/nakadi.log --process 4711 -f bundle.tar.gz",
    shows=False,
)
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="The file to write; it must not exist yet.")
@click.option(
    "--log", "logs", multiple=True, help="A log of the broker; the bundle gets its end. - reads standard input."
)
@click.option("--process", type=int, help="The process id of the broker on this machine, to read its settings.")
def support_bundle(file: Path | None, logs: tuple[str, ...], process: int | None) -> None:
    """Collect in one file the information that helps to find a fault: doctor, metrics, settings, versions and logs.

    The command removes passwords, tokens and keys. The bundle names event types and subscriptions, but has no events.
    If the broker does not answer, the bundle says so, and has all other parts. Check its content before you pass it on.
    """
    file = file or Path(f"nakadi-support-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    api = connect()
    variables = {**os.environ, **({} if process is None else _variables_of(process))}
    known = set(secret_values(variables))
    with suppress(Failed):
        known |= secret_values({}, [api.connection.token() or ""])
    parts = {**_read_machine(variables, known), **_read_broker(api), **dict(_read_logs(logs))}
    _write_bundle(file, {name: without_secrets(text, known) for name, text in parts.items()})
    print_note(f"Wrote {file}.")


def _variables_of(process: int) -> Mapping[str, str]:
    """The environment variables with which a process was started."""
    try:
        content = Path(f"/proc/{process}/environ").read_bytes()
    except OSError as error:
        raise BadInput(f"The settings of process {process} cannot be read: {error.strerror}.") from error
    pairs = (each.partition("=") for each in content.decode(errors="replace").split("\0") if each)
    return {name: value for name, _, value in pairs}


def _read_machine(variables: Mapping[str, str], known: Iterable[str]) -> Mapping[str, str]:
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    versions = {
        "nakadi": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }
    return {"versions.json": _as_text(versions), "settings.json": _as_text(shown_settings(variables, known))}


def _read_broker(api: Api) -> Mapping[str, str]:
    def read(name: str, ask: Callable[[], str]) -> None:
        try:
            parts[name] = ask()
        except Failed as failed:
            failures[name] = failed.message

    parts = {"doctor.json": _as_text([vars(each) for each in examine_broker(api)])}
    failures: dict[str, str] = {}
    read("broker/metrics.txt", api.metrics)
    read("broker/version.json", lambda: _as_text(api.get("/version")))
    read("broker/features.json", lambda: _as_text(api.get("/settings/features")))
    read("broker/storages.json", lambda: _as_text(api.get("/storages")))
    if failures:
        parts["missing.json"] = _as_text(failures)
    return parts


def _read_logs(logs: Iterable[str]) -> Iterable[tuple[str, str]]:
    for number, log in enumerate(logs, 1):
        name = "standard-input" if log == "-" else Path(log).name
        yield f"logs/{number}-{name}", _read_end(log)


def _read_end(log: str) -> str:
    """The end of a log, beginning with a whole line."""
    try:
        if log == "-":
            content = sys.stdin.buffer.read()
        else:
            with Path(log).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES - 1))
                content = file.read(_LOG_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{log} cannot be read: {error.strerror}.") from error
    if len(content) > _LOG_BYTES:
        # A truncated line might contain a secret value without the name that reveals it.
        _, _, content = content[-_LOG_BYTES:].partition(b"\n")
    return content.decode(errors="replace")


def _write_bundle(file: Path, parts: Mapping[str, str]) -> None:
    """Write a compressed archive that only its owner can read."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
            for name, text in sorted(parts.items()):
                content = text.encode()
                entry = tarfile.TarInfo(f"nakadi-support/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(content))
    except FileExistsError:
        raise BadInput(f"{file} exists already.") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}.") from error


def _as_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
