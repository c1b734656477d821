"""JSON schemas: which may be registered, what they mean for events, and how they may change.

These are pure rules: they know the model and the standard library, RE2 and JSON parsers, but no ports and no services.
Begin reading with `submission` for the schemas of event types, with `validation` for events, and with `evolution` for
changes; `document` and `values` are what all of them stand on. `conditions` is a language of its own, for filters.
"""
