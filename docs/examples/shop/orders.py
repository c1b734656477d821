"""A shop that places orders: python orders.py DSN COUNT

Each order and its event are written in one transaction, so either both exist or neither. The program may be killed
at any moment; when it starts again, it continues after the last order that it committed.
"""

import json
import sys
import time

import psycopg

TABLE = "CREATE TABLE IF NOT EXISTS orders (number int PRIMARY KEY, customer text NOT NULL, amount numeric NOT NULL)"


def place_order(database: psycopg.Connection, number: int) -> None:
    customer, amount = f"customer-{number % 7}", f"{number % 100}.{number % 89:02}"
    event = {"order_number": number, "customer": customer, "amount": amount}
    with database.transaction():
        database.execute("INSERT INTO orders VALUES (%s, %s, %s)", [number, customer, amount])
        database.execute(
            "INSERT INTO nakadi_outbox (event_type, key, event) VALUES ('order.placed', %s, %s)",
            [customer, json.dumps(event)],
        )


def main(dsn: str, count: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute(TABLE)
        [last] = database.execute("SELECT coalesce(max(number), 0) FROM orders").fetchone()
        for number in range(last + 1, count + 1):
            place_order(database, number)
            time.sleep(0.005)  # one customer after another


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
