"""Constructs of the AWS CDK for an event broker with the Nakadi HTTP API.

from nakadi_cdk import Context, NakadiAnalytics, NakadiBroker

context = Context(stage="live", auth_issuer="https://issuer.example.org")
broker = NakadiBroker(stack, "Broker", context=context)
NakadiAnalytics(stack, "Analytics", broker=broker)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nakadi_cdk.context import BadContext, Context

if TYPE_CHECKING:
    from nakadi_cdk.broker import NakadiAnalytics, NakadiBroker, NakadiData
    from nakadi_cdk.network import Network
    from nakadi_cdk.scaling import scale_on_pressure

__all__ = ["BadContext", "Context", "NakadiAnalytics", "NakadiBroker", "NakadiData", "Network", "scale_on_pressure"]

_MODULES = {
    "NakadiAnalytics": "broker",
    "NakadiBroker": "broker",
    "NakadiData": "broker",
    "Network": "network",
    "scale_on_pressure": "scaling",
}


def __getattr__(name: str) -> Any:
    """Import a construct only when it is used: the CDK starts node, which settings and permissions do not need."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
