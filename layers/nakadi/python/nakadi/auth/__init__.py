"""Authentication and authorization: the sender of a request, and its permissions.

This package depends on tokens, the registry's settings documents and the model, but neither on event types nor on HTTP.
Begin reading with `permissions`; `admins`, `blacklist` and `features` hold the decisions of administrators at runtime.
Only code that checks tokens imports `tokens`.
"""
