"""Engines in DynamoDB: registry, log index and coordination, for as many processes as needed.

They depend on the model, the ports, and the shared parts of engines. Begin reading with `client`, which interprets the
outcomes of calls.
"""
