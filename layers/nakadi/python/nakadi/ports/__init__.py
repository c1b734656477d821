"""What the broker needs of the world, as promises that callers rely on.

Ports are synchronous. Each has one contract suite in tests/contracts that every engine passes; the suite is the
definition where this text leaves a doubt. All raise `Unavailable` when they could not find out or could not carry out:
then nothing is known, and a caller may try again.

A port that is closed stays closed. From then on each of its methods raises `Unavailable`, changes nothing, and calls
no listener; an answer that is read piece by piece raises when it is read. Closing again changes
nothing, and what ends a watch may still be called. A call that is under way has its effect or raises `Unavailable`.

One file for each port. They know the model only. Begin reading with `event_log`.
"""
