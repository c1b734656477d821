"""The routes, one module per area: each offers its `routes`, and every handler is a doorway of a few lines."""
