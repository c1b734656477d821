"""Engines in DynamoDB: registry, log index and coordination, for as many processes as needed.

They know the model, the ports, and the shared parts of engines. Begin reading with `client`, which judges the
outcomes of calls.
"""
