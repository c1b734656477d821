"""The archive: the older part of a log as objects in a folder or in S3, and logs with such an older half.

It knows the model and the ports, and no other engine. Begin reading with `tiered_log`.
"""
