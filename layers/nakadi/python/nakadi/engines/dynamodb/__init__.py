"""Engines in DynamoDB: registry, log index and coordination, for as many processes as needed.

They know the model, the ports, and what engines have in common. Begin reading with `client`, where calls are judged.
"""
