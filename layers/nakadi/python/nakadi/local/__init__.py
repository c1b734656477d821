"""A broker on this machine: `python -m nakadi.local` as a program, `with Broker() as broker:` inside another one.

>>> from nakadi.local import Broker
>>> with Broker() as broker:
...     broker.url.startswith("http://127.0.0.1:")
True
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nakadi.local.broker import Broker, Faults

__all__ = ["Broker", "Faults"]


def __getattr__(name: str) -> Any:
    # The pytest plugin is in this package, and every test run of its users imports it, so this import happens late.
    if name in __all__:
        from nakadi.local import broker  # noqa: PLC0415  # the reason stands above

        return getattr(broker, name)
    raise AttributeError(name)
