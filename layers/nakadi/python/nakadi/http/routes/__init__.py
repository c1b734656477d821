"""The routes, one module for each area: each defines its `routes`, and every handler has only a few lines."""
