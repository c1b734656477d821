"""Engines in memory: dictionaries and lists under a lock, which do exactly what the ports promise.

They know the model, the ports, and the shared parts of engines. Begin reading with `registry`.
"""
