"""Finds the imports between modules of the package in their sources."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PYTHON = Path(__file__).parents[2] / "layers/nakadi/python"


def imports_by_module() -> Mapping[str, set[str]]:
    """For each module, the package's modules that it imports at its top, inside functions, or only for types."""
    modules = {_module_name(path): path for path in sorted((PYTHON / "nakadi").rglob("*.py"))}
    return {
        name: {each for each in _imported_names(path, modules) if each != name and each in modules}
        for name, path in modules.items()
    }


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(PYTHON).with_suffix("").parts).removesuffix(".__init__")


def _imported_names(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                yield whole if whole in modules else node.module


def imports_inside_functions() -> set[tuple[str, str]]:
    """Files of the package, and their imports inside functions: modules of the package, or other packages."""
    return {
        (str(path.relative_to(PYTHON / "nakadi")), imported)
        for path in sorted((PYTHON / "nakadi").rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        for imported in _names_in(node)
    }


def _names_in(node: ast.AST) -> Iterator[str]:
    modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.module:
        # For a room, the imported name is the module.
        is_room = (PYTHON / node.module.replace(".", "/")).is_dir()
        modules = [f"{node.module}.{each.name}" for each in node.names] if is_room else [node.module]
    for module in modules:
        yield module.removeprefix("nakadi.") if module.startswith("nakadi.") else module.partition(".")[0]


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """For each module in a circle of imports, a path from it back to itself."""
    return [way for module in imports if (way := _way_back(module, imports))]


def _way_back(start: str, imports: Mapping[str, set[str]]) -> list[str] | None:
    came_from: dict[str, str] = {}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        for imported in sorted(imports[module]):
            if imported not in came_from:
                came_from[imported] = module
                waiting.append(imported)
    if start not in came_from:
        return None
    way = [start, came_from[start]]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]
