"""Parts without knowledge of events: caches, chores, turns at long work, and metrics.

They know the model and the ports only. Begin reading with `caching`.
"""
