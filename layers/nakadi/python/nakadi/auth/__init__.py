"""Authentication and authorization: who sends a request, and what the sender may do.

This package knows tokens, the registry's settings documents and the model, but neither event types nor HTTP. Begin
reading with `permissions`; `admins`, `blacklist` and `features` hold what administrators decide at runtime. Only code
that checks tokens imports `tokens`.
"""
