"""Engines: one folder for each technology, with everything that the technology needs for all ports that it serves."""
