/** The subscriptions to an event type. */

import { address, api, body, type Schemas, type Subscription, useLoad } from "../../api";
import { Await, EmptyState } from "../../components/notices";
import type { PageProps } from "../../components/page";
import { Table } from "../../components/table";
import { moment, plural } from "../../format";
import { href } from "../../router";
import { EventTypeFrame } from "./frame";

// How many subscriptions the broker lists at most at once.
const MOST = 1000;

export function Subscriptions({ names: [name = ""] }: PageProps) {
  const subscriptions = useLoad(
    (signal) => body(api.GET("/subscriptions", { params: { query: { event_type: [name], limit: MOST } }, signal })),
    [name],
  );
  const readers = useLoad((signal) => body(api.GET("/event-types/{name}/readers", { params: { path: { name } }, signal })), [name]);
  return (
    <EventTypeFrame name={name} tab="subscriptions">
      {() => (
        <>
          <Await of={subscriptions}>{({ items }) => <Listed name={name} rows={items} />}</Await>
          <Await of={readers}>{(found) => <Reads found={found} />}</Await>
        </>
      )}
    </EventTypeFrame>
  );
}

/** The fields that subscriptions declare to read, and the fields that nobody declares. */
function Reads({ found: { readers, unread } }: { found: Schemas["EventTypeReaders"] }) {
  if (readers.every((each) => !each.reads)) return null;
  const silent = readers.filter((each) => !each.reads).length;
  return (
    <section class="card" aria-label="Who reads what">
      <h2>Who reads what</h2>
      <Table label="Readers" rows={readers} columns={[
        { title: "Application", cell: (row) => row.owning_application },
        { title: "Consumer group", cell: (row) => row.consumer_group },
        { title: "Reads", cell: (row) => (row.reads ? <code>{row.reads.join(", ")}</code> : <span class="faint">declares nothing</span>), wide: true },
      ]} />
      {unread.length > 0 && (
        <p>
          No subscription declares that it reads <code>{unread.join(", ")}</code>.
          {silent > 0 && ` ${plural(silent, "subscription")} may read it all the same.`}
        </p>
      )}
    </section>
  );
}

function Listed({ name, rows }: { name: string; rows: Subscription[] }) {
  if (!rows.length) {
    const example = JSON.stringify({ owning_application: "me", event_types: [name] });
    return (
      <EmptyState title="No application subscribes to this event type">
        <p>A subscription remembers how far its consumers have read. Create one:</p>
        <p><code>curl -H 'Content-Type: application/json' -d '{example}' {address}/subscriptions</code></p>
      </EmptyState>
    );
  }
  return (
    <section class="card">
      <Table label="Subscriptions" rows={rows} columns={[
        { title: "Application", cell: (row) => row.owning_application },
        { title: "Consumer group", cell: (row) => row.consumer_group },
        { title: "Subscription", cell: (row) => <a href={href(["subscriptions", row.id])}>{row.id}</a> },
        { title: "Created", cell: (row) => moment(row.created_at), wide: true },
      ]} />
      {rows.length === MOST && <p class="faint">There may be more than these {MOST}.</p>}
    </section>
  );
}
