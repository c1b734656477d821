/** The partitions of an event type, with their oldest and newest events and current rates, and its timelines. */

import { useRef } from "preact/hooks";
import { api, body, type Schemas, useLoad } from "../../api";
import { Await } from "../../components/notices";
import type { PageProps } from "../../components/page";
import { Table } from "../../components/table";
import { count, moment } from "../../format";
import { EventTypeFrame, tabOf } from "./frame";

type Row = Schemas["Partition"] & { stored: number; rate?: number };
type Seen = { at: number; newest: Map<string, string> };

// How often the page asks the broker, in milliseconds.
const EVERY = 3000;

export function Partitions({ names: [name = ""] }: PageProps) {
  const last = useRef<Seen | undefined>(undefined);
  const partitions = useLoad((signal) => measured(name, last, signal), [name], EVERY);
  const timelines = useLoad(
    (signal) => body(api.GET("/event-types/{name}/timelines", { params: { path: { name } }, signal })),
    [name],
  );
  return (
    <EventTypeFrame name={name} tab="partitions">
      {() => (
        <>
          <section class="card">
            <h2>Partitions</h2>
            <Await of={partitions}>{(rows) => <Listed name={name} rows={rows} />}</Await>
          </section>
          <section class="card">
            <h2>Timelines</h2>
            <Await of={timelines}>{(rows) => <Timelines rows={rows as Schemas["Timeline"][]} />}</Await>
          </section>
        </>
      )}
    </EventTypeFrame>
  );
}

/** The current partitions. Offsets are not counts, so the broker determines the distance between two of them. */
async function measured(name: string, last: { current?: Seen }, signal: AbortSignal): Promise<Row[]> {
  const params = { path: { name } };
  const found = await body(api.GET("/event-types/{name}/partitions", { params, signal }));
  const at = performance.now();
  const before = last.current;
  const asked = found.flatMap((each) => {
    const final_cursor = { partition: each.partition, offset: each.newest_available_offset };
    const from = (offset: string) => ({ initial_cursor: { partition: each.partition, offset }, final_cursor });
    return [from(each.oldest_available_offset), from(before?.newest.get(each.partition) ?? each.newest_available_offset)];
  });
  const distances = await body(api.POST("/event-types/{name}/cursor-distances", { params, body: asked, signal }));
  last.current = { at, newest: new Map(found.map((each) => [each.partition, each.newest_available_offset])) };
  return found.map((each, number) => ({
    ...each,
    stored: (distances[2 * number]?.distance ?? -1) + 1,
    rate: before && ((distances[2 * number + 1]?.distance ?? 0) * 1000) / (at - before.at),
  }));
}

function Listed({ name, rows }: { name: string; rows: Row[] }) {
  const rates = rows.map((row) => row.rate).filter((rate) => rate !== undefined);
  return (
    <>
      <Table label="Partitions" rows={rows} columns={[
        { title: "Partition", cell: (row) => row.partition },
        { title: "Events", cell: (row) => count(row.stored), right: true },
        { title: "Events / s", cell: (row) => (row.rate === undefined ? "…" : row.rate.toFixed(1)), right: true },
        { title: "Oldest", cell: (row) => <code>{row.oldest_available_offset}</code>, wide: true },
        { title: "Newest", cell: (row) => <code>{row.newest_available_offset}</code>, wide: true },
        {
          title: "Read",
          cell: (row) => <a href={tabOf(name, "events", { from: "begin", partition: row.partition })}>from the beginning</a>,
        },
      ]} />
      <p class="faint">
        {count(rows.reduce((sum, row) => sum + row.stored, 0))} events in all
        {rates.length > 0 && <>, {rates.reduce((sum, rate) => sum + rate, 0).toFixed(1)} a second now</>}.
      </p>
    </>
  );
}

function Timelines({ rows }: { rows: Schemas["Timeline"][] }) {
  return (
    <Table label="Timelines" rows={rows} columns={[
      { title: "Order", cell: (row) => row.order },
      { title: "Storage", cell: (row) => row.storage_id },
      { title: "Created", cell: (row) => moment(row.created_at), wide: true },
      { title: "In use since", cell: (row) => moment(row.switched_at) || "not yet" },
      { title: "Cleaned up", cell: (row) => moment(row.cleaned_up_at) || "–" },
      { title: "Topic", cell: (row) => <code>{row.topic}</code>, wide: true },
    ]} />
  );
}
