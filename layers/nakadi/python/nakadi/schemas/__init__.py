"""JSON schemas: which are fit for use, what they mean for events, and how they may change; pure rules, no services."""
