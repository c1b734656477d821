"""Parts that engines share, among them frames of records, listeners, registry documents as text, and secret boxes.

This package depends on the model and the ports. Of AWS, it uses sessions, KMS, and tokens for MSK. Begin reading with
`frames`.
"""
