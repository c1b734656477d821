"""Clients that are generated from the description of the API, as users may do, and used with a running broker."""
