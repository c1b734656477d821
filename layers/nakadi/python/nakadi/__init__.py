"""Nakadi Serverless: an event broker with the complete Nakadi HTTP API.

The rooms, from the inside out: `model`, `ports`, `schemas`, `administration`, `access`, `catalog`, `cursors`,
`publishing` and `streaming`, the engines in `registries` and `eventlogs`, `http`, `bootstrap`, `local`.
An import rule in pyproject.toml guards the direction.
"""
