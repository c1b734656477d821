"""The archive: the older part of a log as objects in a folder or in S3, and logs with such an older half.

This package depends on the model and the ports, and on no other engine. Begin reading with `tiered_log`.
"""
