"""Engines: one folder for each technology, with all that it needs, whatever port it serves."""
