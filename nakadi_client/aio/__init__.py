"""The producer and the consumer for asyncio, with the names that `nakadi_client` has for threads.

from nakadi_client import aio

async with aio.Producer("https://events.example.org", "order.placed") as producer:
    delivery = await producer.send({"order_number": "A-1"})
    await delivery                                     # when it matters that it is stored

async for batch in aio.consume("https://events.example.org", subscription=ID):
    await handle(batch.events)
"""

from nakadi_client.aio.consumer import Consumer, consume
from nakadi_client.aio.producer import Producer
from nakadi_client.aio.reader import Reader, read

__all__ = ["Consumer", "Producer", "Reader", "consume", "read"]
