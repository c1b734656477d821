"""Routes, in a table that is searched segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct, field

from nakadi.http.message import (
    Answer,
    AnswerTask,
    Parameter,
    Request,
)
from nakadi.http.problem import MethodNotAllowed
from nakadi.model.outcomes import NotFound

if TYPE_CHECKING:
    pass


Handler = Callable[[Request], Answer]

# The first limit is enough for any schema in any spelling, or for thousands of cursors; the second is enough for the
# parsed form of these.
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_PARSED_BODY_BYTES = 8 * 1024 * 1024

# Clients choose paths, which must not fill the memory, either by number or by length.
MAX_CACHED_PATHS = 2000
MAX_CACHED_PATH_LENGTH = 300


class Lane(StrEnum):
    """A group of requests with threads of its own in each process.

    So requests that wait, for example for a registry that does not answer, can occupy only the threads of their own
    lane.
    """

    IMMEDIATE = "immediate"
    """No thread at all: the handler waits for nothing, and runs on the event loop."""
    MONITORING = "monitoring"
    EVENTS = "events"
    """Publishing, and commits, without which open streams would stop."""
    STREAMS = "streams"
    """Opening streams; open streams have other threads."""
    REGISTRY = "registry"
    """Everything else."""


class Route(Struct, frozen=True, kw_only=True):
    """One operation.

    `parameters` are the query parameters and headers that its handler may read. Parts of every request, such as
    `X-Flow-Id`, `Accept` and `Content-Encoding`, are the application's, so routes need not declare them. A handler that
    is `quick` may begin on an event loop: before it waits, it raises `NeedsThread`, and can then begin again in a
    thread. With `accepts_any_content_type`, a body may have any content type; otherwise it must be JSON. With
    `ignores_accept_header`, clients that do not accept JSON get it too; otherwise these get 406 instead of a success
    with a body. If a route `changes_cached_documents`, a success is answered only when no process of the deployment
    uses an older document any longer; this wait is omitted if `only_reads` is true for the request. `max_body_bytes` is
    the largest size of a body, as sent and as decompressed, and `max_parsed_bytes` the memory that its values may take.
    """

    method: str
    template: str
    handler: Handler | Callable[[Request], AnswerTask]
    operation: str
    parameters: tuple[Parameter, ...] = ()
    accepts_any_content_type: bool = False
    lane: Lane = Lane.REGISTRY
    quick: bool = False
    ignores_accept_header: bool = False
    changes_cached_documents: bool = False
    only_reads: Callable[[Request], bool] | None = None
    max_body_bytes: int = MAX_BODY_BYTES
    max_parsed_bytes: int | None = MAX_PARSED_BODY_BYTES


class _RouteNode(Struct):
    literal_children: dict[str, _RouteNode] = field(default_factory=dict)
    parameter_child: _RouteNode | None = None
    # The routes by method, with the names of the parameters in the path.
    route_by_method: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _RouteNode()
        self._cached_search = lru_cache(MAX_CACHED_PATHS)(self._search_node)
        self._cached_route = lru_cache(MAX_CACHED_PATHS)(self._search_route_uncached)
        for route in self.routes:
            self._add_route(route)

    def _add_route(self, route: Route) -> None:
        node, names = self._root, []
        for segment in route.template.removeprefix("/").split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter_child = node.parameter_child or _RouteNode()
                node = node.parameter_child
            else:
                node = node.literal_children.setdefault(segment, _RouteNode())
        assert route.method not in node.route_by_method, f"two routes for {route.method} {route.template}"
        node.route_by_method[route.method] = route, tuple(names)

    def find_route(self, method: str, raw_path: str) -> tuple[Route, Mapping[str, str]]:
        """The route and its path parameters. `HEAD` goes where `GET` goes."""
        find = self._cached_route if len(raw_path) <= MAX_CACHED_PATH_LENGTH else self._search_route_uncached
        return find(method, raw_path)

    def _search_route_uncached(self, method: str, raw_path: str) -> tuple[Route, Mapping[str, str]]:
        found = self._find_node(raw_path)
        if found is None:
            raise NotFound(f"There is nothing at {unquote(raw_path)}")
        node, values = found
        entry = node.route_by_method.get("GET" if method == "HEAD" else method)
        if entry is None:
            raise MethodNotAllowed(method, _allowed_methods(node))
        route, names = entry
        return route, dict(zip(names, values, strict=True))

    def lane_of(self, method: str, raw_path: str) -> Lane:
        """The lane of a request, even of one without a route."""
        found = self._find_node(raw_path)
        if found is None:
            return Lane.REGISTRY
        routes = found[0].route_by_method
        # A request with a method that the path does not have is refused in the lane of another method of the path.
        route, _ = routes.get("GET" if method == "HEAD" else method) or next(iter(routes.values()))
        return route.lane

    def is_quick(self, method: str, target: str) -> bool:
        """Whether the handler of a request may begin on an event loop."""
        found = self._find_node(target.partition("?")[0])
        entry = found and found[0].route_by_method.get(method)
        return bool(entry and entry[0].quick)

    def allowed_methods(self, raw_path: str) -> str:
        """The methods of a path, as the `Allow` header lists them."""
        found = self._find_node(raw_path)
        if found is None:
            raise NotFound(f"There is nothing at {unquote(raw_path)}")
        return _allowed_methods(found[0])

    def _find_node(self, raw_path: str) -> tuple[_RouteNode, tuple[str, ...]] | None:
        """The routes of a path, and its parameters. Cached, because most paths were requested before, and each request
        calls this twice.
        """
        return self._cached_search(raw_path) if len(raw_path) <= MAX_CACHED_PATH_LENGTH else self._search_node(raw_path)

    def _search_node(self, raw_path: str) -> tuple[_RouteNode, tuple[str, ...]] | None:
        """The node with routes that a path leads to, and the values of its parameters.

        One slash at the end means nothing. A literal segment takes precedence over a parameter, unless it leads
        nowhere: then the parameter, which waits on the stack, is tried.
        """
        segments = [*map(unquote, raw_path.removeprefix("/").removesuffix("/").split("/"))]
        waiting: list[tuple[_RouteNode, int, tuple[str, ...]]] = [(self._root, 0, ())]
        while waiting:
            node, depth, values = waiting.pop()
            if depth == len(segments):
                if node.route_by_method:
                    return node, values
                continue
            segment = segments[depth]
            if node.parameter_child is not None:
                waiting.append((node.parameter_child, depth + 1, (*values, segment)))
            if segment in node.literal_children:
                waiting.append((node.literal_children[segment], depth + 1, values))
        return None


def _allowed_methods(node: _RouteNode) -> str:
    implied = ("HEAD", "OPTIONS") if "GET" in node.route_by_method else ("OPTIONS",)
    return ", ".join((*node.route_by_method, *implied))
