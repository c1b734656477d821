"""Engines in one SQLite file, for as many processes on one machine as needed.

They know the model, the ports, and what engines have in common. Begin reading with `file`, which holds all tables.
"""
