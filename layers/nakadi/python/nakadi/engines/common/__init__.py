"""Parts that engines share: frames of records, listeners, and documents as text.

This package depends on the model and the ports, and on no technology except AWS sessions. Begin reading with `frames`.
"""
