/** Who subscribes to an event type. */

import { address, api, body, type Subscription, useLoad } from "../../api";
import { Await, EmptyState } from "../../components/notices";
import type { PageProps } from "../../components/page";
import { Table } from "../../components/table";
import { moment } from "../../format";
import { href } from "../../router";
import { EventTypeFrame } from "./frame";

// The most that the broker lists at once.
const MOST = 1000;

export function Subscriptions({ names: [name = ""] }: PageProps) {
  const subscriptions = useLoad(
    (signal) => body(api.GET("/subscriptions", { params: { query: { event_type: [name], limit: MOST } }, signal })),
    [name],
  );
  return (
    <EventTypeFrame name={name} tab="subscriptions">
      {() => <Await of={subscriptions}>{({ items }) => <Listed name={name} rows={items} />}</Await>}
    </EventTypeFrame>
  );
}

function Listed({ name, rows }: { name: string; rows: Subscription[] }) {
  if (!rows.length) {
    const example = JSON.stringify({ owning_application: "me", event_types: [name] });
    return (
      <EmptyState title="No application subscribes to it">
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
