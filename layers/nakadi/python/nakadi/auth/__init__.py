"""Authentication and authorization: who sent a request, and what that subject may do.

This package depends on tokens, the registry's settings documents and the model, but neither on `event_types` nor on
`http`. Begin reading with `permissions`; `admins`, `blacklist` and `features` hold the decisions of administrators at
runtime. `tokens` is imported only where tokens are checked.
"""
