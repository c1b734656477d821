"""Cursors: what a place in an event type means, whether it can be read from, and how far places are apart."""
