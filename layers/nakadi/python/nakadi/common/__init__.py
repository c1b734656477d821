"""Shared parts that know nothing about events: caches, chores, turns at long work, and metrics.

They know only the model and the ports. Begin reading with `caching`.
"""
