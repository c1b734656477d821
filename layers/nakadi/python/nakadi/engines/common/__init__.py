"""Parts that engines share: frames of records, listeners, documents as text, and boxes for secrets.

This package depends on the model and the ports. Of AWS, it uses sessions, KMS, and tokens for MSK. Begin reading with
`frames`.
"""
