"""What the broker needs from stores, logs and the clock, as promises on which callers rely.

Ports are synchronous, except for calls that most requests wait for: `append` and `commit` are tasks of
`nakadi.common.waiting`. Each port has one contract suite in tests/contracts that every engine passes; where this text
is ambiguous, the suite decides. All ports raise `Unavailable` if they cannot answer or cannot complete a call: the
outcome is then unknown, and the caller may try again.

A port that is closed stays closed. From then on each of its methods raises `Unavailable`, changes nothing, and calls
no listener; an answer that is read piece by piece raises when the next piece is read. Closing again changes nothing,
and functions that end a watch may still be called. A call in progress has its effect or raises `Unavailable`.

Each port has its own file, which imports only the model. Begin reading with `event_log`.
"""
