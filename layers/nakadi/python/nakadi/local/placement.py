"""The process of a broker that serves a connection: pure decisions, which the supervisor carries out.

An event that a worker takes passes through two processes, since the supervisor commits for all. For single events of a
few clients, the commit is most of the work, so a worker would take over little of it, and the detour would add work.
Batches, streams and all other requests are work that a worker can take over. The first request shows the load of a
connection, and later, larger requests change it.
"""

from __future__ import annotations

import re

from nakadi.http.connection import MANY_BYTES

# With more clients than this, so many single events share a commit that other processes help (docs/performance.md).
MAX_PUBLISHERS_OF_FEW_EVENTS = 16
# How many bytes of a new connection are examined: enough for the head of the first request of nearly every client.
FIRST_BYTES = 4096

_matches_publishing_request = re.compile(rb"POST /event-types/[^/?# \r\n]+/events[? ]").match
_find_content_length = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE).search


def publishes_few_events(first_bytes: bytes) -> bool:
    """Whether a connection begins with a request that publishes a small body."""
    head, _, _ = first_bytes.partition(b"\r\n\r\n")
    length = _find_content_length(head + b"\r\n")
    return bool(_matches_publishing_request(head)) and length is not None and int(length[1]) < MANY_BYTES


def load_of_supervisor(connections: int, processes: int, *, few_events: bool = False) -> float:
    """The load of the supervisor: how many connections of a worker are as much work as its `connections`, since it also
    commits for the other processes.

    By the CPU time of publishers of batches, it has as much to do as a worker if it has two fifths of the connections
    beside one worker, and a tenth beside three workers (docs/performance.md). So it serves a single client itself,
    which then needs no second process; of many clients, it serves only a few. With `few_events`, the next connection
    publishes few events at a time: the supervisor serves the first of these connections itself.
    """
    if few_events and connections < MAX_PUBLISHERS_OF_FEW_EVENTS:
        return 0
    return connections * (processes - 0.5)
