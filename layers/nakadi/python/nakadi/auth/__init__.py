"""Authentication and authorization: who sends a request, and what the sender may do.

This package knows tokens, the registry's settings documents and the model, but neither event types nor HTTP. Begin
reading with `permissions`, which also has the decisions of administrators. Only code that checks tokens imports
`tokens`.
"""
