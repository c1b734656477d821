"""The registered event types: creating, changing and deleting them, with their schemas, timelines and storages.

This package knows permissions, schemas and the ports, and nothing of HTTP, publishing or streams. Begin with
`repository`; cursors, which are positions in event types, are in `cursors` and `snapshot`.
"""
