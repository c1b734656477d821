"""Engines in memory: dictionaries and lists under a lock, which keep exactly the promises of the ports.

They depend on the model, the ports, and the shared parts of engines. Begin reading with `registry`.
"""
