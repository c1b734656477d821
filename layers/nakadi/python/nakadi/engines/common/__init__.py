"""Parts that engines share: frames of records, listeners, and documents as text.

It knows the model and the ports, and no technology except AWS sessions. Begin reading with `frames`.
"""
