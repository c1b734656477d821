"""Engines in one SQLite file, for as many processes on one machine as needed.

They depend on the model, the ports, and the shared parts of engines. Begin reading with `file`, which defines all
tables.
"""
