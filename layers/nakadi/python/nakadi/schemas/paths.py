"""Which places of an event a schema speaks of, such as `data.order.id`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nakadi.model.outcomes import Invalid
from nakadi.schemas.bounds import Exhausted, spend
from nakadi.schemas.document import Document, RawSchema, size
from nakadi.schemas.nodes import Combined, Node, Object, Reference, classified
from nakadi.schemas.patterns import Pattern, compiled

# A path through a schema that contains itself may be of any length; longer ones than this lead nowhere.
MAX_SEGMENTS = 64

# Definitions that refer to each other several times unfold into more schemas than anybody could search.
MOST_STEPS = 300_000
MAX_DEPTH = 150


def defines(effective: Mapping[str, Any], dotted_path: str) -> bool:
    """Whether the schema defines the property at the path; arrays are not entered."""
    return not missing(effective, [dotted_path])


def missing(effective: Mapping[str, Any], paths: Iterable[str]) -> tuple[str, ...]:
    """Those of the paths that the schema does not define, in their order."""
    search = _Search(Document.of(effective))
    try:
        return tuple(path for path in paths if not search.finds(path))
    except Exhausted as error:
        raise Invalid("schema is too entangled to find properties in it") from error


class _Search:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._steps = [MOST_STEPS]
        self._patterns: dict[str, Pattern] = {}

    def finds(self, path: str) -> bool:
        segments = tuple(path.split("."))
        return len(segments) <= MAX_SEGMENTS and self._defined(self._document.root, segments, 0)

    def _defined(self, schema: RawSchema | None, path: tuple[str, ...], depth: int) -> bool:
        if depth > MAX_DEPTH:
            raise Exhausted
        match self._node(schema):
            case Object() as node:
                return self._defined_by_object(node, path, depth + 1)
            case Combined() as node:
                return self._defined_by_members(node, path, depth + 1)
            case _:
                return False

    def _node(self, schema: RawSchema | None) -> Node | None:
        """What the schema is, or what it refers to in the end."""
        while schema is not None:
            spend(self._steps, size(schema))
            node = classified(schema, self._document.draft)
            if not isinstance(node, Reference):
                return node
            schema = self._document.target(node.reference)
        return None

    def _defined_by_members(self, node: Combined, path: tuple[str, ...], depth: int) -> bool:
        found = sum(self._defined(member, path, depth) for member in node.members)
        match node.criterion:
            case "allOf":
                return found == len(node.members)
            case "oneOf":
                return found == 1
            case _:
                return found > 0

    def _defined_by_object(self, node: Object, path: tuple[str, ...], depth: int) -> bool:
        rest = path[1:]
        if any(not rest or self._defined(each, rest, depth) for each in self._called(path[0], node)):
            return True
        dependencies = node.schema_dependencies
        return ".".join(path) in dependencies or any(self._defined(e, path, depth) for e in dependencies.values())

    def _called(self, name: str, node: Object) -> Iterator[RawSchema]:
        if name in node.properties:
            yield node.properties[name]
        for pattern, schema in node.pattern_properties.items():
            if self._whole(pattern).found_in(name, self._steps):
                yield schema

    def _whole(self, pattern: str) -> Pattern:
        """The pattern for a whole name; made once, for the same schema may be met many times."""
        if pattern not in self._patterns:
            self._patterns[pattern] = compiled(rf"\A(?:{pattern})\z")
        return self._patterns[pattern]
