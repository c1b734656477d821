/** The newest runs of jobs that filled the table of an event type: how many events they added, and the defects. */

import type { ComponentChildren } from "preact";
import { api, body, type EventType, type Schemas, useLoad } from "../../api";
import { Await, EmptyState } from "../../components/notices";
import type { PageProps } from "../../components/page";
import { Plot } from "../../components/plot";
import { Table } from "../../components/table";
import { bytes, count, duration, moment, plural } from "../../format";
import { EventTypeFrame } from "./frame";

type Run = Schemas["TableRun"];

export function TableRuns({ names: [name = ""] }: PageProps) {
  const runs = useLoad(
    (signal) => body(api.GET("/event-types/{name}/table-runs", { params: { path: { name } }, signal })),
    [name],
  );
  return (
    <EventTypeFrame name={name} tab="table">
      {(type) => (
        <>
          {type.table && <State table={type.table} />}
          <Await of={runs}>{({ items }) => <Runs runs={items} />}</Await>
        </>
      )}
    </EventTypeFrame>
  );
}

function State({ table }: { table: NonNullable<EventType["table"]> }) {
  return (
    <p>
      The table <code>{table.name}</code> has {plural(table.rows, "row")}, {count(table.misfits)} of which do not fit its
      columns. It was last changed at {moment(table.updated_at)}.
    </p>
  );
}

function Runs({ runs }: { runs: Run[] }) {
  const [newest] = runs;
  const oldest = runs.at(-1);
  if (!newest || !oldest) {
    return (
      <EmptyState title="No run has added events to a table">
        <p>A job writes archived events into an Iceberg table, and reports faulty events here:</p>
        <p><code>nakadi jobs compaction --data data</code></p>
      </EmptyState>
    );
  }
  const from = Date.parse(oldest.ended_at);
  const to = Date.parse(newest.ended_at);
  return (
    <>
      {runs.length > 1 && (
        <Plot title="Faulty events" lines={defects(runs)} {...{ from, to }} gap={Infinity} shown={count} />
      )}
      <section class="card">
        <h2>{plural(runs.length, "run")}</h2>
        <Table label="Runs" rows={runs} columns={[
          { title: "Ended", cell: (run) => moment(run.ended_at) },
          { title: "Job", cell: (run) => run.job },
          { title: "Rows", cell: (run) => count(run.rows), right: true },
          { title: "Late", cell: (run) => counted(run.late_events), right: true },
          { title: "Duplicates", cell: (run) => counted(run.duplicates), right: true },
          { title: "Missing", cell: (run) => counted(run.missing_events), right: true },
          { title: "Misfits", cell: (run) => counted(run.misfits), right: true },
          { title: "Unmet", cell: (run) => counted(unmet(run)), right: true },
          { title: "Lag", cell: (run) => duration(run.lag_seconds * 1000), right: true, wide: true },
          { title: "Took", cell: (run) => duration(run.cost.seconds * 1000), right: true, wide: true },
          { title: "Read, written", cell: (run) => `${bytes(run.cost.bytes_read)}, ${bytes(run.cost.bytes_written)}`, wide: true },
        ]} />
      </section>
      <Reasons runs={runs} />
      <Expectations runs={runs} />
    </>
  );
}

/** Why events of all runs do not fit the columns. */
function Reasons({ runs }: { runs: Run[] }) {
  const events = new Map<string, { rule: string; path: string; events: number }>();
  for (const each of runs.flatMap((run) => run.misfit_reasons)) {
    const key = `${each.rule} ${each.path}`;
    events.set(key, { ...each, events: each.events + (events.get(key)?.events ?? 0) });
  }
  if (!events.size) return null;
  const rows = [...events.values()].sort((a, b) => b.events - a.events);
  return (
    <section class="card">
      <h2>Why events do not fit the columns</h2>
      <Table label="Misfits" rows={rows} columns={[
        { title: "Path", cell: (row) => (row.path ? <code>{row.path}</code> : "the whole event") },
        { title: "Is not", cell: (row) => <code>{row.rule}</code> },
        { title: "Events", cell: (row) => count(row.events), right: true },
      ]} />
    </section>
  );
}

/** How many events did not meet each expectation in the newest run that has it. */
function Expectations({ runs }: { runs: Run[] }) {
  const unmet = new Map<string, { annotation: string; condition: string; unmet: number }>();
  for (const each of runs.flatMap((run) => run.expectations)) {
    const known = unmet.get(each.annotation);
    unmet.set(each.annotation, { ...each, condition: known?.condition ?? each.condition, unmet: each.unmet + (known?.unmet ?? 0) });
  }
  if (!unmet.size) return null;
  return (
    <section class="card">
      <h2>Expectations</h2>
      <Table label="Expectations" rows={[...unmet.values()]} columns={[
        { title: "Condition", cell: (row) => <code>{row.condition}</code> },
        { title: "Annotation", cell: (row) => <code>{row.annotation}</code>, wide: true },
        { title: "Events that do not meet it", cell: (row) => counted(row.unmet), right: true },
      ]} />
    </section>
  );
}

const unmet = (run: Run): number => run.expectations.reduce((sum, each) => sum + each.unmet, 0);

/** A number of events with a defect. A run may not have counted them. */
function counted(number: number | null | undefined): ComponentChildren {
  if (number === null || number === undefined) return <span class="faint">not counted</span>;
  return number ? <strong>{count(number)}</strong> : count(number);
}

function defects(runs: Run[]) {
  const kinds: [string, (run: Run) => number][] = [
    ["late", (run) => run.late_events ?? 0],
    ["duplicates", (run) => run.duplicates ?? 0],
    ["missing or misfits", (run) => run.missing_events + run.misfits],
    ["unmet expectations", unmet],
  ];
  const ascending = [...runs].reverse();
  return kinds.map(([name, of]) => ({
    name,
    points: ascending.map((run) => ({ at: Date.parse(run.ended_at), value: of(run) })),
  }));
}
