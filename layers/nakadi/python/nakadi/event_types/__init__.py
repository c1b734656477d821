"""The registered event types: creating, changing and deleting them, with their schemas, timelines and storages.

This package depends on permissions, schemas and the ports, but not on HTTP, publishing or streams. Begin reading with
`repository`. `cursors` and `snapshot` handle cursors, which are positions in event types.
"""
