"""Authentication and authorization: who sends a request, and what the sender may do.

This package knows tokens, the registry's settings documents and the model, and nothing of event types or HTTP. Begin
with `permissions`, which also has what administrators decide. `tokens` is imported only where tokens are checked.
"""
