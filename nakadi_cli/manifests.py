"""Manifests: files that describe event types and subscriptions, in clin's format.

A manifest is YAML with `kind` and `spec`. `{{NAME}}` stands for a variable, and a value that begins with `@@@` for the
content of another file, whose path is relative to the manifest. A clin file lists processes, each with the folders of
its manifests, its variables, and its environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nakadi_cli.failures import BadInput
from nakadi_cli.files import parse_yaml, read_text

EVENT_TYPE, SUBSCRIPTION, SQL_QUERY = "event-type", "subscription", "sql-query"
# The order matters: a subscription needs its event types.
KINDS = (EVENT_TYPE, SQL_QUERY, SUBSCRIPTION)

_VARIABLE = re.compile(r"\{\{\s*([^{}\s]+)\s*\}\}")
# Separators that YAML treats as part of a text, and that no file contains.
_OPEN, _CLOSE, _INCLUDE = "\ue000", "\ue001", "\ue002"
_MARKED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]+){_CLOSE}")


@dataclass(frozen=True)
class Manifest:
    """The desired state of a resource."""

    kind: str
    spec: Mapping[str, Any]
    file: Path


@dataclass(frozen=True)
class Chosen:
    """Selects processes of a clin file: by environment, or by their ids."""

    target: str | None = None
    ids: Sequence[str] = ()


def read_manifests(place: Path, variables: Mapping[str, Any], chosen: Chosen) -> list[Manifest]:
    """Read the manifests of a file, of a folder, or of a clin file."""
    if place.is_dir():
        clin_files = sorted(file for file in _yaml_files(place) if file.stem.endswith(".clin"))
        if len(clin_files) > 1:
            raise BadInput(f"There are several clin files in {place}; name one of them.")
        found = _read_clin_file(clin_files[0], variables, chosen) if clin_files else _read_folder(place, variables)
    elif "process" in (document := _load(place, variables)):
        found = _read_processes(document, place, chosen)
    else:
        found = iter([_manifest(document, place)])
    manifests = list(found)
    if not manifests:
        raise BadInput(f"There are no manifests in {place}.")
    return sorted(manifests, key=lambda manifest: KINDS.index(manifest.kind))


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in {".yaml", ".yml"})


def _read_folder(folder: Path, variables: Mapping[str, Any]) -> Iterator[Manifest]:
    """Read the manifests of a folder. Skip files without a `kind`, such as schemas, which manifests include."""
    for file in _yaml_files(folder):
        if "kind" in _parse_file(file):
            yield _manifest(_load(file, variables), file)


def _read_clin_file(file: Path, variables: Mapping[str, Any], chosen: Chosen) -> Iterator[Manifest]:
    return _read_processes(_load(file, variables), file, chosen)


def _read_processes(document: Mapping[str, Any], file: Path, chosen: Chosen) -> Iterator[Manifest]:
    processes = document["process"]
    if not isinstance(processes, list) or not all(isinstance(each, dict) and "paths" in each for each in processes):
        raise BadInput(f"{file}: `process` must be a list, and each item needs `id`, `target` and `paths`.")
    meant = [each for each in processes if not chosen.ids or each.get("id") in chosen.ids]
    targets = sorted({str(each.get("target")) for each in meant})
    if chosen.target is None and len(targets) > 1:
        raise BadInput(f"{file} is for several environments; choose one with --env: {', '.join(targets)}.")
    meant = [each for each in meant if chosen.target in {None, each.get("target")}]
    if not meant:
        raise BadInput(
            f"{file} has no process with that id and environment; its environments are {', '.join(targets)}."
        )
    for process in meant:
        for folder in process["paths"]:
            place = (file.parent / folder).resolve()
            if not place.is_dir():
                raise BadInput(f"{file}: there is no folder {place}.")
            yield from _read_folder(place, process.get("env") or {})


def _manifest(document: Mapping[str, Any], file: Path) -> Manifest:
    kind, spec = document.get("kind"), document.get("spec")
    if kind not in KINDS or not isinstance(spec, dict):
        raise BadInput(f"{file}: a manifest needs `kind`, one of {', '.join(KINDS)}, and `spec`.")
    return Manifest(kind, spec, file)


def _load(file: Path, variables: Mapping[str, Any]) -> dict[str, Any]:
    document = _walk(_read_included(file, ()), lambda text: _resolve_variables(text, variables, file))
    if not isinstance(document, dict):
        raise BadInput(f"{file} is neither a manifest nor a clin file.")
    return document


def _read_included(file: Path, within: tuple[Path, ...]) -> Any:
    if file in within:
        raise BadInput(f"{file} includes itself.")

    def include(text: str) -> Any:
        if not text.startswith(_INCLUDE):
            return text.replace(_INCLUDE, "@@@")
        return _read_included((file.parent / text[1:]).resolve(), (*within, file))

    return _walk(_parse_file(file), include)


def _parse_file(file: Path) -> Any:
    text = _VARIABLE.sub(rf"{_OPEN}\1{_CLOSE}", read_text(str(file))).replace("@@@", _INCLUDE)
    return parse_yaml(text, str(file)) or {}


def _resolve_variables(text: str, variables: Mapping[str, Any], file: Path) -> Any:
    def value_of(name: str) -> Any:
        if variables.get(name) is None:
            raise BadInput(f"{file}: the variable {name} has no value.")
        return variables[name]

    def within(match: re.Match[str]) -> str:
        value = value_of(match[1])
        if isinstance(value, list | dict):
            raise BadInput(f"{file}: {match[1]} is a list or an object, which cannot be part of a text.")
        return str(value)

    if whole := _MARKED.fullmatch(text):
        return value_of(whole[1])
    return _MARKED.sub(within, text)


def _walk(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _walk(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_walk(each, change) for each in value]
    return change(value) if isinstance(value, str) else value
