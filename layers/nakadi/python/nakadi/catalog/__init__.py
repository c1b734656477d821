"""The catalog of event types: what is registered, how it may change, and where its events are kept."""
