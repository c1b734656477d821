"""Clients that others would generate from the description of the API, used against a running broker."""
