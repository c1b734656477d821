"""Rehearsals: the stored events of an event type, judged by a schema that it does not have yet.

It stands on the reading of streams and on the validation of publishing, and knows no HTTP. Begin reading with
`rehearsals.py`, which starts jobs; `job.py` is one of them, `history.py` reads, `judge.py` decides, and `findings.py`
counts.
"""
