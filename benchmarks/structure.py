"""How is the package laid out, and how many calls does one request take through it?

    python benchmarks/structure.py [layout] [walks] [--calls WALK] [--json FILE]

`--calls commit` prints each call of that walk in its order, with its thread and file.

A room is a folder or a module directly below the package; a folder that has nothing but folders is none, and each of
those is one. An arrow leads from a room to one that it imports, wherever the import stands. Floors are the longest way
along the arrows, circles counted as one room. Calls are counted on the memory engine with a warm broker, frames of the
package only. Requests are given to the application in one thread, which is the one that is counted; the stream is one
of the server's, read over a socket, and counts in all threads, as publishing over HTTP does. The least of several
stands.
"""

from __future__ import annotations

import argparse
import ast
import json
import socket
import statistics
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import httpx

PACKAGE = Path(__file__).parents[1] / "layers/nakadi/python/nakadi"

SHORT = 60
"""Files with fewer lines are counted: many of them make many ways."""

REPEATS = 9


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def imports(self, modules: Mapping[str, Module]) -> frozenset[str]:
        """The modules of the package that it imports, at the top or within functions."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                below = {f"{node.module}.{each.name}" for each in node.names}
                found |= (below & modules.keys()) or {node.module}
        return frozenset(found & modules.keys()) - {self.name}

    def types(self) -> Iterator[str]:
        return (node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def function_lengths(self) -> Iterator[int]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield node.end_lineno - node.lineno + 1


class PackageLayout:
    def __init__(self, package: Path = PACKAGE) -> None:
        self.package = package
        self.modules = {each.name: each for each in self._found()}

    def _found(self) -> Iterator[Module]:
        for path in sorted(self.package.rglob("*.py")):
            parts = path.relative_to(self.package.parent).with_suffix("").parts
            yield Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        return {name: module.imports(self.modules) for name, module in self.modules.items()}

    def room(self, module: str) -> str:
        parts = module.split(".")[1:]
        folder = self.package
        for count, part in enumerate(parts, start=1):
            folder /= part
            code = [each for each in folder.glob("*.py") if each.name != "__init__.py"]
            if code or not folder.is_dir():
                return ".".join(parts[:count])
        return ".".join(parts)

    @cached_property
    def arrows(self) -> frozenset[tuple[str, str]]:
        pairs = {(self.room(name), self.room(other)) for name, others in self.imports.items() for other in others}
        return frozenset((room, other) for room, other in pairs if room and other and room != other)

    def measured(self) -> dict[str, object]:
        files = list(self.modules.values())
        lengths = sorted(length for each in files for length in each.function_lengths())
        types = Counter(name for each in files for name in each.types())
        importers = Counter(other for others in self.imports.values() for other in others)
        rooms = {room for each in files if each.lines > 1 and (room := self.room(each.name))}
        groups = circles(self.arrows)
        lines = sum(each.lines for each in files)
        repeated = sum(count for count in types.values() if count > 1)
        return {
            "rooms": len(rooms),
            "floors": floors(self.arrows, groups),
            "arrows": len(self.arrows),
            "circles": [sorted(each) for each in groups],
            "files": len(files),
            "lines": lines,
            "lines of a file": round(lines / len(files)),
            "longest file": max((each.lines, str(each.path.relative_to(self.package))) for each in files),
            f"files below {SHORT} lines": sum(each.lines < SHORT for each in files),
            "files imported by exactly one other": sum(importers[each.name] == 1 for each in files),
            "types per 1,000 lines": round(1000 * types.total() / lines, 1),
            "types whose name is used more than once": f"{repeated / types.total():.0%}",
            "most repeated names": [f"{name} {count}" for name, count in types.most_common(6) if count > 1],
            "lines of a function (median, p95, longest)": (
                round(statistics.median(lengths)),
                lengths[len(lengths) * 95 // 100],
                lengths[-1],
            ),
        }


def circles(arrows: frozenset[tuple[str, str]]) -> list[frozenset[str]]:
    """Rooms that lead back to themselves, each group once."""
    ways = reachable(arrows)
    groups = {frozenset({other for other in there if room in ways[other]}) for room, there in ways.items()}
    return sorted((each for each in groups if len(each) > 1), key=sorted)


def reachable(arrows: frozenset[tuple[str, str]]) -> dict[str, set[str]]:
    ways: dict[str, set[str]] = {}
    for room, other in arrows:
        ways.setdefault(room, set()).add(other)
        ways.setdefault(other, set())
    # One round for each room that a way leads through, until nothing is added.
    sizes: list[int] = []
    while sizes != (sizes := [len(each) for each in ways.values()]):
        ways = {room: there.union(*(ways[each] for each in there)) for room, there in ways.items()}
    return ways


def floors(arrows: frozenset[tuple[str, str]], groups: list[frozenset[str]]) -> int:
    """How many rooms the longest way leads through."""
    named = {room: " ".join(sorted(group)) for group in groups for room in group}
    below: dict[str, set[str]] = defaultdict(set)
    for room, other in arrows:
        first, second = named.get(room, room), named.get(other, other)
        if first != second:
            below[first].add(second)
    depth: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in depth:
            depth[room] = 1 + max((of(each) for each in below[room]), default=0)
        return depth[room]

    return max((of(room) for room in list(below)), default=1)


class Counted(NamedTuple):
    calls: int
    functions: int
    files: int
    made: Sequence[tuple[str, CodeType]]
    """Each call in its order, and the thread that made it."""

    def listed(self) -> Iterator[str]:
        for thread, code in self.made:
            file = Path(code.co_filename).relative_to(PACKAGE)
            yield f"{thread:16.16} {file!s:40} {code.co_qualname}"


class Steps:
    """Counts the calls in threads that begin after it was made, and in this one, while it is switched on."""

    def __init__(self) -> None:
        self._threads: frozenset[int] | None = frozenset()
        self._calls: list[tuple[str, CodeType]] = []
        self._prefix = str(PACKAGE)
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(self._prefix):
            return
        if self._threads is None or threading.get_ident() in self._threads:
            self._calls.append((threading.current_thread().name, frame.f_code))

    def of(self, walk: Callable[[], object], *, everywhere: bool = False) -> Counted:
        """Calls, functions and files, in this thread or in all of them."""
        self._calls = []
        self._threads = None if everywhere else frozenset({threading.get_ident()})
        try:
            walk()
        finally:
            self._threads = frozenset()
        functions = {code for _, code in self._calls}
        return Counted(len(self._calls), len(functions), len({each.co_filename for each in functions}), self._calls)

    def close(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)


EVENT_TYPE = {
    "name": "walk",
    "owning_application": "bench",
    "category": "undefined",
    "schema": {"type": "json_schema", "schema": '{"type": "object", "required": ["n"]}'},
}


def walks() -> dict[str, Counted]:
    """Publish one event; publish one and wait until a stream of a subscription has it; commit its cursor. Publications
    and commits are counted over HTTP as well."""
    steps = Steps()
    walked = WalkedBroker()
    try:
        consumed = _consuming_walks(steps, walked)
        published = least(walked.without_figures, lambda: steps.of(walked.publish))
        return {"publish": published, "publish over HTTP": _publishing_over_http(steps, walked), **consumed}
    finally:
        walked.broker.close()
        steps.close()


class WalkedBroker:
    """A broker in memory with an event type. Made behind `Steps`, so that all of its threads are counted."""

    def __init__(self) -> None:
        from nakadi.app.broker import open_broker  # noqa: PLC0415  # its threads are to be counted from their start
        from nakadi.app.routes import make_application  # noqa: PLC0415
        from nakadi.app.settings import Settings  # noqa: PLC0415

        self.broker = open_broker(Settings())
        self.application = make_application(self.broker)
        self.ask("/event-types", EVENT_TYPE)
        self.without_figures()

    def ask(self, path: str, body: object, **headers: str) -> Any:
        """Have a request answered in this thread. Returns what the answer says."""
        from nakadi.http.message import Request, Response  # noqa: PLC0415

        sent = {"content-type": "application/json", **headers}
        request = Request(method="POST", path="", target=path, headers=sent, body=json.dumps(body).encode())
        answer = self.application.answer(request)
        assert isinstance(answer, Response), answer
        assert answer.status < 300, answer
        return json.loads(answer.body or b"null")

    def publish(self) -> None:
        self.ask("/event-types/walk/events", [{"n": 1}])

    def without_figures(self) -> None:
        """Publish until the broker has seen that no figures are wanted; for a second it does no more for them."""
        from nakadi.event_types.system_event_type_definitions import ACCESS_LOG, BATCH_PUBLISHED  # noqa: PLC0415

        while any(map(self.broker.kpi_collector.is_collecting, (BATCH_PUBLISHED, ACCESS_LOG))):
            self.publish()


class WalkedStream:
    """A stream of a subscription over a socket, which has events and commits them."""

    def __init__(self, walked: WalkedBroker, url: str) -> None:
        self._walked = walked
        wanted = {"owning_application": "bench", "event_types": ["walk"], "read_from": "end"}
        self._path = f"/subscriptions/{walked.ask('/subscriptions', wanted)['id']}"
        self._cursors: list[object] = []
        parameters = {"batch_flush_timeout": 30, "max_uncommitted_events": 1000}
        self._open = ExitStack()
        stream = self._open.enter_context(
            httpx.stream("GET", f"{url}{self._path}/events", params=parameters, timeout=60)
        )
        self._id = stream.headers["X-Nakadi-StreamId"]
        self._lines = stream.iter_lines()

    def close(self) -> None:
        self._open.close()

    @property
    def uncommitted(self) -> int:
        return len(self._cursors)

    def deliver(self) -> None:
        self._walked.publish()
        line: dict[str, Any] = {}
        while "events" not in line:
            line = json.loads(next(self._lines))
        self._cursors.append(line["cursor"])

    def commit(self) -> None:
        self._walked.ask(f"{self._path}/cursors", {"items": [self._cursors.pop(0)]}, **{"x-nakadi-streamid": self._id})

    def commit_over(self, connection: socket.socket) -> None:
        content = json.dumps({"items": [self._cursors.pop(0)]}).encode()
        head = f"POST {self._path}/cursors HTTP/1.1\r\nHost: localhost\r\nX-Nakadi-StreamId: {self._id}\r\n"
        ask_over(connection, head, content)


def _consuming_walks(steps: Steps, walked: WalkedBroker) -> dict[str, Counted]:
    from nakadi.local.serving import ServerThread  # noqa: PLC0415

    with ServerThread(walked.application) as serving, closing(WalkedStream(walked, serving.url)) as stream:
        stream.deliver()
        stream.commit()
        # First the ones and then the others: what a commit leads to in other threads is no part of a delivery.
        delivered = [steps.of(stream.deliver, everywhere=True) for _ in range(2 * REPEATS)]
        committed = least(walked.without_figures, lambda: steps.of(stream.commit), REPEATS)
        with socket.create_connection(("127.0.0.1", serving.port)) as connection:
            stream.commit_over(connection)
            # What it leads to in the stream is counted with it.
            served = least(
                walked.without_figures,
                lambda: steps.of(lambda: stream.commit_over(connection), everywhere=True),
                stream.uncommitted,
            )
    return {
        "publish to delivered": min(delivered, key=_figures_of),
        "commit": committed,
        "commit over HTTP": served,
    }


def _publishing_over_http(steps: Steps, walked: WalkedBroker) -> Counted:
    from nakadi.local.serving import ServerThread  # noqa: PLC0415

    with (
        ServerThread(walked.application) as serving,
        socket.create_connection(("127.0.0.1", serving.port)) as connection,
    ):
        # The first ones are looked at in threads, where everything is read that the loop finds remembered later.
        for _ in range(20):
            publish_over(connection)
        return least(walked.without_figures, lambda: steps.of(lambda: publish_over(connection), everywhere=True))


def _figures_of(counted: Counted) -> tuple[int, int, int]:
    return counted[:3]


def least(prepare: Callable[[], None], count: Callable[[], Counted], number: int = 3 * REPEATS) -> Counted:
    """The least of many counts, each of them prepared for."""
    counts: list[Counted] = []
    for _ in range(number):
        prepare()
        counts.append(count())
    return min(counts, key=_figures_of)


def publish_over(connection: socket.socket) -> None:
    ask_over(connection, "POST /event-types/walk/events HTTP/1.1\r\nHost: localhost\r\n", b'[{"n":1}]')


def ask_over(connection: socket.socket, head: str, body: bytes) -> None:
    """Send a request in one piece, and wait for the answer."""
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 20"), answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=["layout", "walks", []], default=[])
    parser.add_argument("--calls", metavar="WALK", help="print each call of a walk, such as commit")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts or (["walks"] if arguments.calls else ["layout", "walks"])
    figures: dict[str, object] = {}
    if "layout" in parts:
        figures |= PackageLayout().measured()
    if "walks" in parts:
        counted = walks()
        figures |= {f"{name}: calls, functions, files": _figures_of(seen) for name, seen in counted.items()}
        if arguments.calls:
            print(*counted[arguments.calls].listed(), sep="\n")
    for name, figure in figures.items():
        print(f"{name:48} {figure}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
