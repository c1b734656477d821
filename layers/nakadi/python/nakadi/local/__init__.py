"""A broker on this machine: `python -m nakadi.local` as a program, `with Broker() as broker:` inside another program.

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
    # `Broker` is imported late, because the pytest plugin in this package is imported by every test run of its users.
    if name in __all__:
        from nakadi.local import broker  # noqa: PLC0415  # the reason stands above

        return getattr(broker, name)
    raise AttributeError(name)
