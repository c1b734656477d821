"""Shared parts that do not depend on events: caches, chores, turns at long work, tasks that wait, and metrics.

They import only the model and the ports. Begin reading with `caching`.
"""
