"""The books of the shop: python books.py DSN BROKER SUBSCRIPTION

The program enters every order once. The loop commits a batch when it requests the next one, after the entries are in
the database. A program that is killed in between receives the batch again, and recognizes its events by their `eid`.
"""

import sys

import psycopg

from nakadi_client import StreamOptions, consume

TABLE = """CREATE TABLE IF NOT EXISTS entries (
    eid uuid PRIMARY KEY, order_number int NOT NULL, customer text NOT NULL, amount numeric NOT NULL,
    entered bigint GENERATED ALWAYS AS IDENTITY)"""
ENTER = "INSERT INTO entries (eid, order_number, customer, amount) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"


def main(dsn: str, broker: str, subscription: str) -> None:
    # A program that was killed gets its partitions back at once.
    options = StreamOptions(on_disconnect="release")
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute(TABLE)
        for batch in consume(broker, subscription=subscription, options=options):
            with database.transaction(), database.cursor() as cursor:
                cursor.executemany(
                    ENTER,
                    [
                        (each["metadata"]["eid"], each["order_number"], each["customer"], each["amount"])
                        for each in batch.events
                    ],
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
