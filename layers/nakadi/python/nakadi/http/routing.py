"""Finding the handler of a request: a table of routes, looked through segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from urllib.parse import unquote

from msgspec import Struct, field

from nakadi.http.message import Answer, Request
from nakadi.http.problem import MethodNotAllowed
from nakadi.model.outcomes import NotFound

Handler = Callable[[Request], Answer]

# What a schema may have in any spelling, or thousands of cursors; and that in memory, once it is parsed.
MOST_BODY = 2 * 1024 * 1024
MOST_PARSED = 8 * 1024 * 1024


class Lane(StrEnum):
    """Which threads of a process work on a request.

    Each lane has threads of its own. So requests that wait for something, such as a registry that does not answer, can
    fill their own lane and no other.
    """

    IMMEDIATE = "immediate"
    """No thread at all: the handler waits for nothing, and runs on the event loop."""
    MONITORING = "monitoring"
    EVENTS = "events"
    """Publishing, and the commits without which open streams come to a halt."""
    STREAMS = "streams"
    """Opening streams; those that are open have threads of their own."""
    REGISTRY = "registry"
    """Everything else."""


class Route(Struct, frozen=True, kw_only=True):
    """One operation.

    `any_body` reads a body of every content type; otherwise it must be JSON. `any_accept` sends JSON also to clients
    that do not accept it; otherwise these get 406 instead of a success with a body. `most_body` is how many bytes a
    body may have, as it is sent and unpacked, and `most_parsed` how many its values may take in memory.
    """

    method: str
    template: str
    handler: Handler
    operation: str
    any_body: bool = False
    lane: Lane = Lane.REGISTRY
    any_accept: bool = False
    most_body: int = MOST_BODY
    most_parsed: int | None = MOST_PARSED


class _Node(Struct):
    literals: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    # By method, with the names of the parameters on the way.
    routes: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        for segment in route.template.removeprefix("/").split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        assert route.method not in node.routes, f"two routes for {route.method} {route.template}"
        node.routes[route.method] = route, tuple(names)

    def find(self, method: str, raw_path: str) -> tuple[Route, Mapping[str, str]]:
        """The route and its path parameters. `HEAD` goes where `GET` goes."""
        found = self._match(raw_path)
        if found is None:
            raise NotFound(f"There is nothing at {unquote(raw_path)}")
        node, values = found
        entry = node.routes.get("GET" if method == "HEAD" else method)
        if entry is None:
            raise MethodNotAllowed(method, _allowed(node))
        route, names = entry
        return route, dict(zip(names, values, strict=True))

    def lane(self, method: str, raw_path: str) -> Lane:
        """The lane of a request, also of one that no route is for."""
        found = self._match(raw_path)
        if found is None:
            return Lane.REGISTRY
        node, _ = found
        # A path that lacks the method is refused where the methods that it has are answered.
        route, _ = node.routes.get("GET" if method == "HEAD" else method) or next(iter(node.routes.values()))
        return route.lane

    def allowed(self, raw_path: str) -> str:
        """The methods of a path, as the `Allow` header lists them."""
        found = self._match(raw_path)
        if found is None:
            raise NotFound(f"There is nothing at {unquote(raw_path)}")
        return _allowed(found[0])

    def _match(self, raw_path: str) -> tuple[_Node, tuple[str, ...]] | None:
        """The node with routes that a path leads to, and the values of its parameters.

        One slash at the end means nothing. A word goes before a parameter, unless it leads nowhere: then the parameter,
        which waits on the stack, is next.
        """
        segments = [*map(unquote, raw_path.removeprefix("/").removesuffix("/").split("/"))]
        waiting: list[tuple[_Node, int, tuple[str, ...]]] = [(self._root, 0, ())]
        while waiting:
            node, depth, values = waiting.pop()
            if depth == len(segments):
                if node.routes:
                    return node, values
                continue
            segment = segments[depth]
            if node.parameter is not None:
                waiting.append((node.parameter, depth + 1, (*values, segment)))
            if segment in node.literals:
                waiting.append((node.literals[segment], depth + 1, values))
        return None


def _allowed(node: _Node) -> str:
    implied = ("HEAD", "OPTIONS") if "GET" in node.routes else ("OPTIONS",)
    return ", ".join((*node.routes, *implied))
