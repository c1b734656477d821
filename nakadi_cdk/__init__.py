"""Constructs of the AWS CDK for an event broker with the Nakadi HTTP API.

from nakadi_cdk import Context, NakadiAnalytics, NakadiBroker

context = Context(stage="live", auth_issuer="https://issuer.example.org")
broker = NakadiBroker(stack, "Broker", context=context)
NakadiAnalytics(stack, "Analytics", broker=broker)
"""

from nakadi_cdk.broker import NakadiAnalytics, NakadiBroker, NakadiData
from nakadi_cdk.context import BadContext, Context
from nakadi_cdk.network import Network

__all__ = ["BadContext", "Context", "NakadiAnalytics", "NakadiBroker", "NakadiData", "Network"]
