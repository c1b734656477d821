"""JSON schemas: which may be registered, their meaning for events, and how they may change.

These are pure rules: they import the model, the standard library, RE2 and JSON parsers, but no ports and no services.
Begin reading with `submission` for the schemas of event types, with `validation` for events, and with `evolution` for
changes; all of them build on `document` and `values`. `conditions` is a separate language, for filters.
"""
