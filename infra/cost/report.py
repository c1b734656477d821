"""The bill as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.cost.bill import Line, by_part, total_dollars
from infra.cost.elsewhere import Offer
from infra.cost.flows import Flows
from infra.cost.idle import IdleCost
from infra.cost.prices import PRICES_DATE, REGION, SECONDS, Prices


def report_lines(
    flows: Flows, bill: Sequence[Line], others: Sequence[Offer], idle: Sequence[IdleCost], *, details: bool
) -> Iterator[str]:
    events = flows.load.events_per_second * SECONDS
    sum_of_all = total_dollars(bill)
    yield f"Dollars a month in {REGION}, at prices of {PRICES_DATE}, without free tiers. * rests on an assumed price."
    yield ""
    for part, dollars in by_part(bill).items():
        mine = [line for line in bill if line.part == part]
        yield f"{part:<44}{dollars:12,.2f}{_assumed_price_mark(mine)}"
        if details:
            for line in mine:
                used = f"{line.quantity:,.0f} {line.price.unit}"
                yield f"  {line.what:<42}{line.dollars:12,.2f}  {used}{_assumed_price_mark([line])}"
    yield f"{'Total':<44}{sum_of_all:12,.2f}"
    yield f"{'  of it at assumed prices *':<44}{total_dollars([line for line in bill if line.price.assumed]):12,.2f}"
    if events:
        yield f"{'A million events':<44}{sum_of_all / events * 1e6:12,.4f}"
    if flows.deployment.on_msk:
        yield f"Partitions: {flows.load.all_partitions}. Tasks: {flows.tasks}."
    else:
        yield f"Shards: {flows.shards}. Tasks: {flows.tasks}. Records of the stream: {flows.frames:,.1f} a second."
    yield ""
    yield "The same load elsewhere, without what clients and servers of one's own cost:"
    for offer in others:
        yield f"{offer.name:<44}{offer.dollars:12,.2f}  {offer.lacks}"
    yield ""
    yield "What is there while nothing happens:"
    for each in idle:
        yield f"{each.what:<50}{each.dollars:12,.4f}"


def price_lines(prices: Prices) -> Iterator[str]:
    yield f"Prices of {PRICES_DATE}, {REGION}. * is assumed: no source for it was found."
    for name, price in prices.items():
        mark = "*" if price.assumed else " "
        yield f"{name:<32}{price.dollars:>16.10f}{mark} $/{price.unit:<20} {price.source}"


def _assumed_price_mark(bill: Sequence[Line]) -> str:
    return " *" if any(line.price.assumed for line in bill) else ""
