"""Engines in memory: dictionaries and lists under a lock, which keep the promises of the ports and no others.

They depend on the model, the ports, and the shared parts of engines. Begin reading with `registry`.
"""
