"""Reads what users pass: JSON or YAML, from a file or from standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from nakadi_cli.failures import BadInput


def read_text(file: str) -> str:
    """Return the content of a file; `-` is standard input."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} cannot be read: it is not text in UTF-8.") from error


def read_document(file: str) -> Any:
    """Return the document in a file, which is JSON or YAML."""
    return parse_document(read_text(file), file)


def parse_document(text: str, file: str) -> Any:
    """Parse JSON or YAML; `file` is the source of the text."""
    try:
        return json.loads(text)
    except ValueError:
        return parse_yaml(text, file)
    except RecursionError as error:
        raise BadInput(f"{file} is nested too deeply.") from error


def read_definition(file: str, what: str) -> dict[str, Any]:
    """Return the definition in a file, an object; `what` names the kind of definition."""
    document = read_document(file)
    if not isinstance(document, dict):
        raise BadInput(f"{file} is not a definition of {what}.")
    return document


def parse_yaml(text: str, file: str) -> Any:
    """Parse YAML. Values that look like dates stay texts, as in JSON."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    try:
        return yaml.load(text, Loader)  # noqa: S506  # it is a safe loader
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise BadInput(f"{file}{line}: this is neither JSON nor YAML.") from error
    except RecursionError as error:
        raise BadInput(f"{file} is nested too deeply.") from error
