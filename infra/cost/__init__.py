"""What a load costs on AWS in a month, part by part, and elsewhere. Nothing in here knows the broker.

`python -m infra.cost --help` explains the arguments. Begin reading at `flows`, then `bill`.
"""
