"""What engines have in common: frames of records, listeners, and documents as text.

It knows the model and the ports, and no technology but AWS sessions. Begin reading with `frames`.
"""
