"""The tables of an outbox, as SQL that an application adds to its migrations."""

from __future__ import annotations

import re

import msgspec

SLOTS = 64
"""Keys are spread over this many slots. A relay locks the slots whose rows it publishes, so relays share the keys."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


class OutboxNames(msgspec.Struct, frozen=True):
    """The names that belong to an outbox. `table` may have a schema in front, as in `shop.outbox`."""

    table: str = "nakadi_outbox"

    def __post_init__(self) -> None:
        parts = self.table.split(".")
        if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
            raise ValueError(
                f"{self.table!r} cannot be the name of an outbox: letters, digits and underscores, and perhaps a schema"
                " with a dot in front."
            )

    @property
    def quoted(self) -> str:
        return _quote_name(self.table)

    @property
    def slots(self) -> str:
        return _quote_name(f"{self.table}_slots")

    @property
    def refused(self) -> str:
        return _quote_name(f"{self.table}_refused")

    @property
    def feeds(self) -> str:
        return _quote_name(f"{self.table}_feeds")

    @property
    def channel(self) -> str:
        """The channel that inserts notify."""
        return self.table.replace(".", "_")

    @property
    def base(self) -> str:
        """The table's name without its schema."""
        return self.table.rpartition(".")[2]


def _quote_name(name: str) -> str:
    return ".".join(f'"{part}"' for part in name.split("."))


def outbox_schema(names: OutboxNames | None = None) -> str:
    """The statements that create an outbox. They may be executed repeatedly."""
    names = names or OutboxNames()
    schema = f"{_quote_name(names.table.rpartition('.')[0])}." if "." in names.table else ""
    return f"""\
-- Events of an application, for `nakadi relay postgres`. Insert in the transaction that changes your own tables:
--   INSERT INTO {names.table} (event_type, key, event) VALUES ('order.placed', 'A-1', '{{"order_number": "A-1"}}');
CREATE TABLE IF NOT EXISTS {names.quoted} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_type text NOT NULL,
    -- Events with the same key are published in the order of their ids. Those without a key have no order.
    key text,
    event jsonb NOT NULL CHECK (jsonb_typeof(event) = 'object'),
    -- It is the same for every attempt, so that a broker that deduplicates stores the event once.
    eid uuid NOT NULL DEFAULT gen_random_uuid(),
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Set if published rows are kept.
    published_at timestamptz,
    slot smallint NOT NULL GENERATED ALWAYS AS (
        ('x' || substr(md5(event_type || ' ' || coalesce('k' || key, id::text)), 1, 4))::bit(16)::int % {SLOTS}
    ) STORED
);
CREATE INDEX IF NOT EXISTS {names.base}_waiting ON {names.quoted} (slot, id) WHERE published_at IS NULL;

-- One row for each group of keys. A relay locks the rows of the groups that it publishes.
CREATE TABLE IF NOT EXISTS {names.slots} (slot smallint PRIMARY KEY);
INSERT INTO {names.slots} SELECT generate_series(0, {SLOTS - 1}) ON CONFLICT DO NOTHING;

-- Events that the broker refused, with the reason. Later events with the same key wait until this one is resolved.
CREATE TABLE IF NOT EXISTS {names.refused} (
    id bigint PRIMARY KEY,
    event_type text NOT NULL,
    key text,
    event jsonb NOT NULL,
    eid uuid NOT NULL,
    written_at timestamptz NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text NOT NULL
);
CREATE INDEX IF NOT EXISTS {names.base}_refused_keys ON {names.refused} (event_type, key);

-- How far feeds of whole tables are (`nakadi relay postgres --changes`).
CREATE TABLE IF NOT EXISTS {names.feeds} (
    name text PRIMARY KEY,
    relation text NOT NULL,
    event_type text NOT NULL,
    snapshot text NOT NULL,
    snapshot_position pg_lsn NOT NULL,
    position pg_lsn NOT NULL
);

CREATE OR REPLACE FUNCTION {schema}"{names.base}_notify"() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{names.channel}', '');
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS {names.base}_inserted ON {names.quoted};
CREATE TRIGGER {names.base}_inserted AFTER INSERT ON {names.quoted}
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}"{names.base}_notify"();
"""
