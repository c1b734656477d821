"""Rehearsals: the stored events of an event type, judged by a schema that it does not have yet.

This package builds on the reading of streams and the validation of publishing, and does not depend on HTTP. Begin
reading with `rehearsals.py`, which starts jobs; `job.py` runs a job, `history.py` reads events, `judge.py` decides
whether they are valid, and `findings.py` counts.
"""
