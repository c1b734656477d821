"""Rehearsals: the stored events of an event type, judged by a schema that it does not have yet.

This package builds on the reading of streams and the validation of publishing, and does not depend on HTTP. Begin
reading with `rehearsals.py`, which starts jobs; `job.py` is one of them, `history.py` reads, `judge.py` decides, and
`findings.py` counts.
"""
