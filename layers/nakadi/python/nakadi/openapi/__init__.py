"""The description of the API: files in YAML, one for each area, read as one OpenAPI document.

`api.yaml` is the frame. Every other file adds paths, and the parameters, responses and schemas that they use; no file
contradicts another one. Reading the files takes a while, so they are read on first use, and only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from msgspec import Struct

HTTP_METHODS = ("get", "post", "put", "patch", "delete")

Node = Mapping[str, Any]


class ApiOperation(Struct, frozen=True, kw_only=True):
    """One operation; `parameters` are its own and those of its path, with references at the top level resolved."""

    id: str
    method: str
    path: str
    parameters: tuple[Node, ...]
    responses: Mapping[str, Node]
    description: Node


@cache
def document() -> Node:
    whole = _read_yaml("api.yaml")
    for name in sorted(each.name for each in files(__name__).iterdir() if each.name.endswith(".yaml")):
        if name != "api.yaml":
            _merge_into(whole, _read_yaml(name))
    return whole


@cache
def document_json() -> bytes:
    return orjson.dumps(document())


@cache
def operations() -> Mapping[str, ApiOperation]:
    tags = [tag["name"] for tag in document()["tags"]]
    found = sorted(_read_operations(), key=lambda operation: tags.index(operation.description["tags"][0]))
    return {operation.id: operation for operation in found}


def resolve_reference(node: Node) -> Node:
    """The target of a reference; any other value itself."""
    while "$ref" in node:
        target: Any = document()
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        node = target
    return node


def gateway_document() -> dict[str, Any]:
    """The parts of the description that a gateway needs: paths and operations, with neither bodies nor schemas.

    API Gateway makes a model of every schema in the description, in a dialect without `nullable`, `example` and
    `readOnly`; and models would be useless, because the gateway passes on every request unchanged.
    """
    return {
        "openapi": document()["openapi"],
        "info": {name: document()["info"][name] for name in ("title", "version")},
        "paths": {path: _gateway_path(path) for path in document()["paths"]},
    }


def _gateway_path(path: str) -> dict[str, Any]:
    here = [operation for operation in operations().values() if operation.path == path]
    return {operation.method.lower(): _gateway_operation(operation) for operation in here}


def _gateway_operation(operation: ApiOperation) -> dict[str, Any]:
    in_path = [each for each in operation.parameters if each["in"] == "path"]
    return {
        "operationId": operation.id,
        "parameters": [
            {"name": each["name"], "in": "path", "required": True, "schema": {"type": "string"}} for each in in_path
        ],
        "responses": {"200": {"description": "As the broker answers"}},
    }


def _read_yaml(name: str) -> dict[str, Any]:
    import yaml  # noqa: PLC0415  # most processes never look at the description, and a cold start pays for every import

    # The loader in C, if available, is several times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: dict[str, Any] = yaml.load(files(__name__).joinpath(name).read_bytes(), loader)  # noqa: S506  # both are safe
    return content


def _merge_into(whole: dict[str, Any], part: Node, path: str = "") -> None:
    """Merge a file into the whole. Different files may describe different operations of one path."""
    for name, value in part.items():
        if name not in whole:
            whole[name] = value
        elif isinstance(value, dict):
            _merge_into(whole[name], value, f"{path}/{name}")
        elif value != whole[name]:
            raise ValueError(f"Two files describe {path}/{name} differently")


def _read_operations() -> Iterator[ApiOperation]:
    for path, item in document()["paths"].items():
        for method in HTTP_METHODS:
            if method in item:
                yield _make_operation(path, method, item[method], item.get("parameters", ()))


def _make_operation(path: str, method: str, description: Node, shared_parameters: list[Node]) -> ApiOperation:
    return ApiOperation(
        id=description["operationId"],
        method=method.upper(),
        path=path,
        parameters=tuple(resolve_reference(each) for each in (*shared_parameters, *description.get("parameters", ()))),
        responses={status: resolve_reference(each) for status, each in description["responses"].items()},
        description=description,
    )
