"""Engines: one folder for each technology, with everything that it needs for all the ports that it serves."""
