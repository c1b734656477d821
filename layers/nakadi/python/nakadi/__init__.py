"""Nakadi Serverless: an event broker with the complete Nakadi HTTP API.

The packages, each of which imports only packages named before it: `model`, `openapi`, `ports`, `common`, `schemas` and
`engines`, `auth`, `event_types`, `publishing` and `streaming`, `subscriptions`, `http`, `app`, `local`. An import rule
in pyproject.toml checks the order. To read the path of an event, begin with `publishing`.
"""
