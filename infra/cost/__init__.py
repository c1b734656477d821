"""The monthly cost of a load on AWS, part by part, and of other services. This package does not import the broker.

`python -m infra.cost --help` explains the arguments. Begin reading at `flows`, then `bill`.
"""
