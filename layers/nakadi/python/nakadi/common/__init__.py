"""Shared parts that know nothing about events: caches, chores, turns at long work, tasks that
wait, and metrics.

They import only the model and the ports. Begin reading with `caching`.
"""
